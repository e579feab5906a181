// E2B's JavaScript SDK: commands, files and death. Run by node with tsx.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { CommandExitError, FileType, NotFoundError, Sandbox, TimeoutError } from 'e2b'

let sandbox: Sandbox

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 600_000 })
})

after(async () => {
  await sandbox.kill()
})

test('commands: streams, variables, users and folders', async () => {
  const heard: string[] = []
  const result = await sandbox.commands.run('echo "$SAID €"; echo two >&2; pwd', {
    envs: { SAID: 'one' },
    onStdout: (data) => {
      heard.push(data)
    },
  })
  assert.equal(result.exitCode, 0)
  assert.equal(result.stdout, 'one €\n/home/user\n')
  assert.equal(result.stderr, 'two\n')
  assert.equal(heard.join(''), result.stdout)
  assert.equal((await sandbox.commands.run('whoami; pwd', { user: 'root' })).stdout, 'root\n/root\n')
  assert.equal((await sandbox.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
})

test('commands: exits and times', async () => {
  await assert.rejects(sandbox.commands.run('echo out; exit 9'), (error: CommandExitError) => {
    assert.ok(error instanceof CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout], [9, 'out\n'])
    return true
  })
  await assert.rejects(sandbox.commands.run('sleep 600', { timeoutMs: 1000 }), TimeoutError)
  assert.equal((await sandbox.commands.run('seq 1 100000')).stdout.length, 588895)
})

test('commands: input, connecting, killing', async () => {
  const handle = await sandbox.commands.run('cat', { background: true, stdin: true })
  const second = await sandbox.commands.connect(handle.pid)
  await sandbox.commands.sendStdin(handle.pid, 'said\n')
  await sandbox.commands.closeStdin(handle.pid)
  assert.equal((await handle.wait()).stdout, 'said\n')
  assert.equal((await second.wait()).stdout, 'said\n')
  const sleeper = await sandbox.commands.run('sleep 600', { background: true })
  assert.ok((await sandbox.commands.list()).some((process) => process.pid === sleeper.pid))
  await sleeper.disconnect()
  await sandbox.commands.run(`kill -0 ${sleeper.pid}`)
  assert.equal(await sandbox.commands.kill(sleeper.pid), true)
  assert.equal(await sandbox.commands.kill(999_999), false)
  await assert.rejects(sandbox.commands.connect(999_999), NotFoundError)
})

test('files: written, read, listed, moved, removed', async () => {
  const written = await sandbox.files.write('js/ü "deep".txt', 'content €')
  assert.equal(written.path, '/home/user/js/ü "deep".txt')
  assert.equal(await sandbox.files.read(written.path), 'content €')
  const raw = await sandbox.files.read(written.path, { format: 'bytes' })
  assert.equal(Buffer.from(raw).toString(), 'content €')
  const many = await sandbox.files.write([
    { path: 'js/one', data: '1' },
    { path: 'js/two', data: new Blob(['2']) },
  ])
  assert.deepEqual(many.map((info) => info.path), ['/home/user/js/one', '/home/user/js/two'])
  const listed = await sandbox.files.list('js')
  assert.deepEqual(listed.map((entry) => entry.name), ['one', 'two', 'ü "deep".txt'])
  assert.equal(listed[0].type, FileType.FILE)
  assert.equal(listed[0].size, 1)
  assert.equal(listed[0].permissions, '-rw-r--r--')
  assert.equal(await sandbox.files.makeDir('js'), false)
  assert.equal((await sandbox.files.rename('js/one', 'js/new/one')).path, '/home/user/js/new/one')
  await sandbox.files.remove('js')
  assert.equal(await sandbox.files.exists('js'), false)
  await assert.rejects(sandbox.files.read('js/two'), NotFoundError)
})

test('files: packed, with metadata, by signed addresses', async () => {
  const long = 'again and again. '.repeat(20_000)
  const info = await sandbox.files.write('packed', long, { gzip: true, metadata: { author: 'me' } })
  assert.deepEqual(info.metadata, { author: 'me' })
  assert.equal(await sandbox.files.read('packed', { gzip: true }), long)
  assert.deepEqual((await sandbox.files.getInfo('packed')).metadata, { author: 'me' })
  const answer = await fetch(await sandbox.downloadUrl('packed'))
  assert.equal(answer.status, 200)
  assert.equal(await answer.text(), long)
  const expired = await fetch(await sandbox.downloadUrl('packed', { useSignatureExpiration: -120 }))
  assert.deepEqual(await expired.json(), { code: 401, message: 'signature is already expired' })
})

test('death looks like death', async () => {
  const other = await Sandbox.create({ timeoutMs: 60_000 })
  const handle = await other.commands.run('sleep 600', { background: true })
  assert.equal(await other.isRunning(), true)
  await other.kill()
  await assert.rejects(handle.wait())
  assert.equal(await other.isRunning(), false)
  await assert.rejects(other.commands.run('true'))
})
