// E2B's JavaScript code interpreter. Run by node with tsx.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'

let sandbox: Sandbox

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 600_000 })
})

after(async () => {
  await sandbox.kill()
})

test('state, output and results', async () => {
  await sandbox.runCode('x = 41')
  assert.equal((await sandbox.runCode('x + 1')).text, '42')
  const heard: string[] = []
  const done = await sandbox.runCode("print('a\\u2028b')", {
    onStdout: (message) => {
      heard.push(message.line)
    },
  })
  assert.equal(heard.join(''), 'a\u2028b\n')
  assert.equal(done.logs.stdout.join(''), 'a\u2028b\n')
  assert.equal((await sandbox.runCode('1/0')).error?.name, 'ZeroDivisionError')
})

test('charts', async () => {
  const code = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.title('T')\nplt.show()"
  const [result] = (await sandbox.runCode(code)).results
  assert.ok(result.png)
  assert.equal(result.chart?.type, 'line')
  assert.equal(result.chart?.title, 'T')
})

test('contexts', async () => {
  const made = await sandbox.createCodeContext({ cwd: '/home/user/there' })
  assert.equal((await sandbox.runCode('import os; os.getcwd()', { context: made })).text, '/home/user/there')
  const listed = await sandbox.listCodeContexts()
  assert.equal(listed[listed.length - 1].id, made.id)
  await sandbox.restartCodeContext(made)
  await sandbox.removeCodeContext(made)
  await assert.rejects(sandbox.runCode('1', { context: made }))
})

test('a kernel that ends', async () => {
  assert.equal((await sandbox.runCode('import os; os._exit(1)')).error?.name, 'UnexpectedEndOfExecution')
  assert.equal((await sandbox.runCode('1 + 1')).text, '2')
})
