// The kernel of JavaScript and TypeScript: V8's own REPL mode, by which `await`, `const` twice and the value of the last
// expression are what they are in a browser's console, behind the host's channel at descriptor 3.
'use strict'

const fs = require('node:fs')
const inspector = require('node:inspector')
const { createRequire, stripTypeScriptTypes } = require('node:module')
const net = require('node:net')
const path = require('node:path')
const { pathToFileURL } = require('node:url')
const util = require('node:util')
const { promiseHooks } = require('node:v8')
const vm = require('node:vm')

const CHANNEL = 3
const MAX_TEXT = 32 * 1024
const MAX_VALUE = 16 * 1024 * 1024
const session = new inspector.Session()
session.connect()

let count = 0
const abandoned = []
let interrupt = null // ends the wait for a run that awaits something

function send(message) {
  const bytes = Buffer.from(JSON.stringify(message) + '\n')
  for (let start = 0; start < bytes.length; ) {
    try {
      start += fs.writeSync(CHANNEL, bytes, start)
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1) // the host is slow; nothing else may go on
    }
  }
}

// Values

function bundle(value) {
  const display = value?.[Symbol.for('Jupyter.display')]
  if (typeof display === 'function') return display.call(value)
  const shown = { 'text/plain': util.inspect(value, { depth: 4, maxStringLength: 1 << 20 }) }
  if (value !== null && typeof value === 'object' && (Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype)) {
    try {
      shown['application/json'] = JSON.parse(JSON.stringify(value))
    } catch {} // a circle, a BigInt: no value of JSON, and its text is there
  }
  return shown
}

function sendResult(value, main) {
  const data = {}
  const dropped = {}
  for (const [mime, shown] of Object.entries(bundle(value))) {
    const length = typeof shown === 'string' ? shown.length : JSON.stringify(shown).length
    if (length > MAX_VALUE) dropped[mime] = length
    else data[mime] = typeof shown === 'string' ? shown.toWellFormed() : shown
  }
  send({ event: 'result', main, data, ...(Object.keys(dropped).length ? { dropped } : {}) })
}

function sendError(error) {
  const isError = util.types.isNativeError(error)
  const value = isError ? String(error.message) : util.inspect(error)
  const lines = (isError && typeof error.stack === 'string' ? error.stack : value).split('\n')
  // What is below the cell is this file.
  const below = lines.findIndex((line) => line.includes(__filename) || line.includes('node:inspector'))
  const traceback = (below < 0 ? lines : lines.slice(0, below)).join('\n')
  const name = isError ? String(error.name) : 'Error'
  send({ event: 'error', name, value: value.slice(0, MAX_TEXT), traceback: traceback.slice(0, MAX_TEXT) })
}

// Code

// `import a, { b as c } from "m"` is no expression; as one that awaits it can be run again and again.
function importing(code) {
  const statement = /^[ \t]*import\s+(?:(type\s)?([\w$*{}\s,]+?)\s+from\s+)?["']([^"']+)["'][ \t]*;?/gm
  return dynamic(code).replace(statement, (_, type, names, from) => {
    if (type) return ''
    const module = `await ${IMPORT}(${JSON.stringify(from)})`
    if (!names) return `${module};`
    const braces = names.match(/\{[^}]*\}/)?.[0]
    const rest = names.replace(/\{[^}]*\}/, '').split(',').map((name) => name.trim()).filter(Boolean)
    const parts = rest.map((name) => (name.startsWith('*') ? `const ${name.split(/\s+as\s+/)[1]} = ${module};` : `const { default: ${name} } = ${module};`))
    if (braces) parts.push(`const ${braces.replace(/\s+as\s+/g, ': ')} = ${module};`)
    return parts.join(' ')
  })
}

// `import(...)` as well, where it isn't part of a text or a comment.
function dynamic(code) {
  const other = /"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`|\/\/.*|\/\*[^]*?\*\//
  const call = /(?<![\w$.])import(?=\s*\()/
  return code.replace(new RegExp(`(${other.source})|${call.source}`, 'g'), (_, kept) => kept ?? IMPORT)
}

const compiles = (code) => {
  try {
    new vm.Script(code)
    return true
  } catch {
    return false
  }
}

function prepared(code) {
  const trimmed = code.trim().replace(/;$/, '')
  if (trimmed.startsWith('{') && trimmed.endsWith('}') && compiles(`(${trimmed}\n)`)) return `(${trimmed}\n)`
  const plain = importing(code)
  if (compiles(`(async () => {${plain}\n})`)) return plain
  try {
    return importing(stripTypeScriptTypes(code, { mode: 'transform' }))
  } catch {
    return plain // no TypeScript either: V8 says what is wrong with it
  }
}

const IMPORT = '__bellglassImport'

// From where the cell is, not from where this file is; `npm:name` is what Deno calls a package.
function load(name) {
  const wanted = name.replace(/^npm:/, '')
  const require = createRequire(path.join(process.cwd(), 'cell.js'))
  const found = require.resolve(wanted)
  return import(path.isAbsolute(found) ? pathToFileURL(found).href : found)
}

// The result refers to a value in V8's words; this takes the value itself.
function taken(remote) {
  if (!remote.objectId) return 'unserializableValue' in remote ? vm.runInThisContext(remote.unserializableValue) : remote.value
  let value
  globalThis.__bellglassTake = (found) => (value = found)
  session.post('Runtime.callFunctionOn', {
    functionDeclaration: 'function (found) { globalThis.__bellglassTake(found) }',
    objectId: remote.objectId,
    arguments: [{ objectId: remote.objectId }],
  })
  delete globalThis.__bellglassTake
  return value
}

function evaluate(code) {
  // V8 tells of a run whose promise is collected before it is settled, in the middle of that, which Node does not
  // survive. So the promise of one that was interrupted is kept; it is among the first that a run makes.
  const promises = []
  return new Promise((resolve, reject) => {
    const stop = () => {
      abandoned.push(promises)
      reject(interrupted())
    }
    interrupt = stop
    globalThis.__bellglassRun = () =>
      session.post('Runtime.evaluate', { expression: code, replMode: true, awaitPromise: true }, (error, answer) =>
        error ? stop() : resolve(answer),
      )
    const unhook = promiseHooks.onInit((promise) => promises.length < 16 && promises.push(promise))
    try {
      // Under its watch a loop that never ends is left by SIGINT.
      vm.runInThisContext('__bellglassRun()', { breakOnSigint: true })
    } catch {
      stop()
    } finally {
      unhook()
    }
  }).finally(() => {
    interrupt = null
    delete globalThis.__bellglassRun
  })
}

function interrupted() {
  const error = new Error('the run was interrupted')
  error.name = 'KeyboardInterrupt'
  error.stack = `${error.name}: ${error.message}`
  return error
}

async function run({ code, env }) {
  const before = Object.fromEntries(Object.keys(env).map((name) => [name, process.env[name]]))
  Object.assign(process.env, env)
  send({ event: 'started', count: ++count })
  try {
    const { result, exceptionDetails } = await evaluate(prepared(code))
    if (exceptionDetails) sendError(taken(exceptionDetails.exception))
    else if (result.type !== 'undefined') sendResult(taken(result), true)
  } catch (error) {
    sendError(error)
  }
  for (const [name, value] of Object.entries(before)) {
    if (value === undefined) delete process.env[name]
    else process.env[name] = value
  }
  send({ event: 'end' })
}

process.on('SIGINT', () => interrupt?.())
for (const event of ['uncaughtException', 'unhandledRejection']) {
  process.on(event, (error) => console.error(error)) // of what a cell left running
}
Object.defineProperty(globalThis, IMPORT, { value: load })
globalThis.require = createRequire(path.join(process.cwd(), 'cell.js'))
globalThis.display = (value) => sendResult(value, false)

let rest = ''
const channel = new net.Socket({ fd: CHANNEL, readable: true, writable: false })
channel.setEncoding('utf8')
channel.on('data', (data) => {
  const lines = (rest + data).split('\n')
  rest = lines.pop()
  for (const line of lines) run(JSON.parse(line))
})
channel.on('end', () => process.exit(0))
send({ event: 'ready' })
