// E2B's JavaScript SDK: the control plane. Run by node with tsx.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { NotFoundError, Sandbox, SandboxError, Template } from 'e2b'

test('a life, its end, and lists', async () => {
  const mark = `the mark ${Date.now()} ä+&=`
  const sandbox = await Sandbox.create({ timeoutMs: 60_000, metadata: { 'the key': mark }, envs: { FROM: 'create' } })
  try {
    const info = await sandbox.getInfo()
    assert.equal(info.sandboxId, sandbox.sandboxId)
    assert.equal(info.templateId, 'base')
    assert.deepEqual(info.metadata, { 'the key': mark })
    assert.equal(await sandbox.isRunning(), true)
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
    assert.equal((await sandbox.getInfo()).endAt.getTime(), info.endAt.getTime())
    await sandbox.setTimeout(600_000)
    assert.ok((await sandbox.getInfo()).endAt.getTime() > info.endAt.getTime() + 300_000)
    const again = await Sandbox.connect(sandbox.sandboxId)
    assert.equal((await again.commands.run('echo $FROM')).stdout, 'create\n')
    const paginator = Sandbox.list({ query: { metadata: { 'the key': mark } }, limit: 1 })
    const found: string[] = []
    while (paginator.hasNext) {
      found.push(...(await paginator.nextItems()).map((item) => item.sandboxId))
    }
    assert.deepEqual(found, [sandbox.sandboxId])
    const metrics = await sandbox.getMetrics()
    assert.ok(metrics[metrics.length - 1].memTotal > 0)
    assert.ok(sandbox.getHost(8000).startsWith(`8000-${sandbox.sandboxId}.`))
  } finally {
    assert.equal(await sandbox.kill(), true)
  }
  assert.equal(await sandbox.kill(), false)
  assert.equal(await sandbox.isRunning(), false)
  await assert.rejects(Sandbox.connect(sandbox.sandboxId), NotFoundError)
})

test('networks', async () => {
  const sandbox = await Sandbox.create({
    timeoutMs: 60_000,
    network: { denyOut: ['0.0.0.0/0'], allowOut: ['api.example.com', '203.0.114.0/24'] },
  })
  try {
    assert.deepEqual((await sandbox.getInfo()).network?.allowOut, ['api.example.com', '203.0.114.0/24'])
    await sandbox.updateNetwork({ allowInternetAccess: false })
    assert.equal((await sandbox.getInfo()).allowInternetAccess, false)
    await sandbox.updateNetwork({ denyOut: ['203.0.114.7'] })
    assert.deepEqual((await sandbox.getInfo()).network?.denyOut, ['203.0.114.7/32'])
    assert.equal((await sandbox.getInfo()).allowInternetAccess, true)
    const crowd = Array.from({ length: 128 }, (_, number) => `9.${number * 2}.0.1`)
    await assert.rejects(sandbox.updateNetwork({ denyOut: ['0.0.0.0/1'], allowOut: crowd }), /501: /)
  } finally {
    await sandbox.kill()
  }
})

test('templates, and what is refused by name', async () => {
  assert.equal(await Template.exists('base'), true)
  assert.equal(await Template.exists('no-such-template'), false)
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
  try {
    await assert.rejects(sandbox.pause(), SandboxError)
    await assert.rejects(sandbox.createSnapshot(), SandboxError)
  } finally {
    await sandbox.kill()
  }
})
