// E2B's JavaScript SDK: terminals and watched folders.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { FilesystemEventType, NotFoundError, Sandbox } from 'e2b'

let sandbox: Sandbox

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 600_000 })
})

after(async () => {
  await sandbox.kill()
})

function until<T>(wanted: (so_far: T[]) => boolean): { push: (value: T) => void; reached: Promise<void>; all: T[] } {
  const all: T[] = []
  let reach = () => {}
  const reached = new Promise<void>((resolve) => (reach = resolve))
  const push = (value: T) => {
    all.push(value)
    if (wanted(all)) reach()
  }
  return { push, reached, all }
}

test('a terminal runs a shell, is resized, and comes back', async () => {
  const first = until<string>((said) => said.join('').includes('24 80\r\n'))
  const terminal = await sandbox.pty.create({
    cols: 80,
    rows: 24,
    envs: { MINE: 'here' },
    onData: (data) => first.push(Buffer.from(data).toString()),
  })
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size\n'))
  await first.reached
  await sandbox.pty.resize(terminal.pid, { cols: 132, rows: 50 })
  await terminal.disconnect()
  const second = until<string>((said) => said.join('').includes('50 132\r\n'))
  const again = await sandbox.pty.connect(terminal.pid, {
    onData: (data) => second.push(Buffer.from(data).toString()),
  })
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size; echo $MINE\n'))
  await second.reached
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('exit\n'))
  assert.equal((await again.wait()).exitCode, 0)
  assert.equal(await sandbox.pty.kill(terminal.pid), false)
})

test('a watched folder tells what changes', async () => {
  await sandbox.files.makeDir('watched/there')
  const seen = until<string>((all) => all.includes(`${FilesystemEventType.WRITE} there/file`))
  const handle = await sandbox.files.watchDir('watched', (event) => seen.push(`${event.type} ${event.name}`), {
    recursive: true,
  })
  await sandbox.files.write('watched/there/file', 'x')
  await seen.reached
  assert.ok(seen.all.includes(`${FilesystemEventType.CREATE} there/file`))
  await handle.stop()
  await assert.rejects(
    sandbox.files.watchDir('missing', () => {}),
    NotFoundError
  )
})
