// ComputeSDK with its E2B provider, unmodified. Run by node with tsx.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { e2b } from '@computesdk/e2b'

const compute = e2b({})
let sandbox: Awaited<ReturnType<typeof compute.sandbox.create>>

before(async () => {
  sandbox = await compute.sandbox.create({ timeout: 600_000, envs: { SAID: 'hello' }, metadata: { of: 'test' } })
})

after(async () => {
  await sandbox.destroy()
  assert.equal((await compute.sandbox.list()).length, 0)
})

test('commands', async () => {
  const script = "sh -c 'echo $SAID $MORE; pwd; echo e >&2; exit 3'"
  const done = await sandbox.runCommand(script, { env: { MORE: 'too' }, cwd: '/tmp' })
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['hello too\n/tmp\n', 'e\n', 3])
})

test('files', async () => {
  const { filesystem } = sandbox
  await filesystem.mkdir('/home/user/made')
  await filesystem.writeFile('/home/user/made/a.txt', 'one €\n')
  assert.equal(await filesystem.readFile('/home/user/made/a.txt'), 'one €\n')
  assert.deepEqual((await filesystem.readdir('/home/user/made')).map((entry) => [entry.name, entry.size]), [['a.txt', 8]])
  await filesystem.remove('/home/user/made/a.txt')
  assert.equal(await filesystem.exists('/home/user/made/a.txt'), false)
})

test('the same sandbox from elsewhere', async () => {
  const again = await compute.sandbox.getById(sandbox.sandboxId)
  assert.equal((await again!.runCommand('echo $SAID')).stdout, 'hello\n')
  assert.deepEqual((await compute.sandbox.list()).map((one) => one.sandboxId), [sandbox.sandboxId])
  assert.equal(await compute.sandbox.getById('i0000000000000000000'), null)
})

test('ports', async () => {
  assert.match(await sandbox.getUrl({ port: 3000 }), /^https:\/\/3000-/)
})
