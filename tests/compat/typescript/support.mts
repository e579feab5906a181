// Calls every public method of the npm clients once, as python/support.py does for those of PyPI, and prints the same
// JSON. Methods are found by reflection over the prototypes of the exported classes; what their types call private or
// protected is not public. One without a call here is a failure.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import * as e2b from 'e2b'
import * as interpreter from '@e2b/code-interpreter'

type Call = () => unknown
type Calls = Record<string, Call>
type Found = { outcome: string; note: string }

const { Sandbox, Secret, Template, Volume } = e2b
const image: any = Template().fromImage('debian')
const made: Record<string, any> = {}

function works(check: boolean): void {
  if (!check) throw new Error('it answered something else')
}

// --- finding ---------------------------------------------------------------------------------------------

/** Names that the declarations beside a package's code keep for itself. */
function hidden(name: string): Set<string> {
  const types = readFileSync(createRequire(import.meta.url).resolve(name).replace(/\.m?js$/, '.d.ts'), 'utf8')
  const kept = types.matchAll(/^\s+(?:private|protected)\s+(?:static\s+)?(?:get\s+|readonly\s+)?(\w+)/gm)
  return new Set([...kept].map((match) => match[1]))
}

function members(from: any, end: any): string[] {
  const found: string[] = []
  for (let at = from; at && at !== end; at = Object.getPrototypeOf(at)) {
    for (const [name, is] of Object.entries(Object.getOwnPropertyDescriptors(at))) {
      if (typeof is.value === 'function' && name !== 'constructor') found.push(name)
    }
  }
  return found
}

/** Methods of the objects and of the class, those of `beside` left out. */
function methods(kind: any, beside?: any): Set<string> {
  const found = [...members(kind.prototype, Object.prototype), ...members(kind, Function.prototype)]
  const others = beside ? methods(beside) : new Set()
  return new Set(found.filter((name) => !others.has(name)))
}

// --- calling ---------------------------------------------------------------------------------------------

const results: Record<string, Found> = {}

async function tried(call: Call): Promise<Found> {
  try {
    await call()
  } catch (error: any) {
    const said = String(error?.message ?? error)
    if (said.includes('501') && said.includes('not supported by Bellglass')) return { outcome: 'refused', note: '' }
    return { outcome: 'failed', note: `${error?.name}: ${said.slice(0, 300)}\n${error?.stack}` }
  }
  return { outcome: 'works', note: '' }
}

async function all(title: string, wanted: Set<string>, kept: Set<string>, calls: Calls, local: string[] = []) {
  for (const [name, call] of Object.entries(calls)) {
    if (!wanted.has(name)) throw new Error(`${title}.${name} is no method of this client`)
    const found = await tried(call)
    if (found.outcome === 'works' && local.includes(name)) found.outcome = 'local'
    results[`${title}.${name}`] = found
  }
  for (const name of wanted) {
    if (!(name in calls) && !kept.has(name)) {
      results[`${title}.${name}`] = { outcome: 'failed', note: 'no call of it is written down in support.mts' }
    }
  }
}

// --- what is called --------------------------------------------------------------------------------------

function sandboxCalls(sandbox: any, second: any): Calls {
  const withServers = () => Sandbox.create({ timeoutMs: 30_000, mcp: { browserbase: {} } } as any)
  return {
    create: async () => works(await (await Sandbox.create({ timeoutMs: 30_000 })).kill()),
    connect: async () => works((await Sandbox.connect(sandbox.sandboxId)).sandboxId === sandbox.sandboxId),
    getInfo: async () => works((await sandbox.getInfo()).templateId === 'base'),
    getFullInfo: async () => works((await Sandbox.getFullInfo(sandbox.sandboxId)).sandboxId === sandbox.sandboxId),
    isRunning: async () => works(await sandbox.isRunning()),
    setTimeout: () => sandbox.setTimeout(600_000),
    list: async () => works((await Sandbox.list({ query: { metadata: { of: 'support' } } }).nextItems()).length > 0),
    getMetrics: async () => works((await sandbox.getMetrics()).length > 0),
    updateNetwork: () => sandbox.updateNetwork({}),
    kill: async () => works(await second.kill()),
    pause: () => sandbox.pause(),
    betaPause: () => sandbox.betaPause(),
    fork: () => sandbox.fork(),
    createSnapshot: () => sandbox.createSnapshot(),
    listSnapshots: () => sandbox.listSnapshots().nextItems(),
    deleteSnapshot: () => Sandbox.deleteSnapshot('base:x'),
    getHost: () => works(sandbox.getHost(80).startsWith(`80-${sandbox.sandboxId}.`)),
    downloadUrl: async () => works((await sandbox.downloadUrl('one.txt')).includes('signature=')),
    uploadUrl: async () => works((await sandbox.uploadUrl('one.txt')).includes('signature=')),
    getMcpToken: withServers,
    getMcpUrl: withServers,
  }
}

async function commandCalls(sandbox: any): Promise<Calls> {
  const commands = sandbox.commands
  const cats = [1, 2].map(() => commands.run('cat', { background: true, stdin: true }))
  const [one, two] = (await Promise.all(cats)).map((cat: any) => cat.pid)
  return {
    run: async () => works((await commands.run('echo hello')).stdout === 'hello\n'),
    list: async () => {
      const pids = (await commands.list()).map((info: any) => info.pid)
      works(pids.includes(one) && pids.includes(two))
    },
    connect: async () => works((await commands.connect(one)).pid === one),
    sendStdin: () => commands.sendStdin(one, 'x\n'),
    closeStdin: () => commands.closeStdin(one),
    kill: async () => works(await commands.kill(two)),
  }
}

async function handleCalls(sandbox: any): Promise<Calls> {
  const cats = [1, 2, 3].map(() => sandbox.commands.run('cat', { background: true, stdin: true }))
  const [one, two, three] = await Promise.all(cats)
  return {
    sendStdin: () => one.sendStdin('x\n'),
    closeStdin: () => one.closeStdin(),
    wait: async () => works((await one.wait()).stdout === 'x\n'),
    disconnect: () => two.disconnect(),
    kill: async () => works(await three.kill()),
  }
}

function ptyCalls(sandbox: any): Calls {
  const size = { cols: 80, rows: 24 }
  const typed = Buffer.from('echo\n')
  return {
    create: async () => (made.pty = (await sandbox.pty.create({ ...size, onData: () => {} })).pid),
    connect: async () => works((await sandbox.pty.connect(made.pty, { onData: () => {} })).pid === made.pty),
    resize: () => sandbox.pty.resize(made.pty, size),
    sendInput: () => sandbox.pty.sendInput(made.pty, typed),
    kill: async () => works(await sandbox.pty.kill(made.pty)),
  }
}

function fileCalls(sandbox: any): Calls {
  const files = sandbox.files
  return {
    write: async () => works((await files.write('one.txt', 'text')).path === '/home/user/one.txt'),
    writeFiles: async () => works((await files.writeFiles([{ path: 'a.txt', data: 'a' }])).length === 1),
    read: async () => works((await files.read('one.txt')) === 'text'),
    getInfo: async () => works((await files.getInfo('one.txt')).size === 4),
    exists: async () => works((await files.exists('one.txt')) && !(await files.exists('none.txt'))),
    list: async () => works((await files.list('/home/user')).some((entry: any) => entry.name === 'one.txt')),
    makeDir: async () => works(await files.makeDir('folder')),
    rename: async () => works((await files.rename('one.txt', 'folder/two.txt')).path === '/home/user/folder/two.txt'),
    remove: () => files.remove('folder'),
    watchDir: async () => (made.watch = await files.watchDir('/home/user', () => {})),
  }
}

/** In an order in which each has what it needs. The remote is another folder of the sandbox. */
function gitCalls(sandbox: any): Calls {
  const { git, files } = sandbox
  const [at, remote] = ['/home/user/repo', '/home/user/remote.git']
  const author = { authorName: 'A', authorEmail: 'a@example.com' }
  return {
    init: async () => {
      await git.init(at, { initialBranch: 'main' })
      await git.init(remote, { bare: true, initialBranch: 'main' })
    },
    configureUser: () => git.configureUser('A', 'a@example.com'),
    setConfig: () => git.setConfig('pull.rebase', 'false'),
    getConfig: async () => works((await git.getConfig('pull.rebase')) === 'false'),
    status: async () => works((await git.status(at)).currentBranch === 'main'),
    add: async () => {
      await files.write(`${at}/file.txt`, 'one')
      await git.add(at)
    },
    commit: () => git.commit(at, 'one', author),
    remoteAdd: () => git.remoteAdd(at, 'origin', remote),
    remoteGet: async () => works((await git.remoteGet(at, 'origin')) === remote),
    push: () => git.push(at, { remote: 'origin', branch: 'main' }),
    pull: () => git.pull(at, { remote: 'origin', branch: 'main' }),
    clone: () => git.clone(remote, { path: '/home/user/clone' }),
    createBranch: () => git.createBranch(at, 'side'),
    checkoutBranch: () => git.checkoutBranch(at, 'main'),
    branches: async () => works((await git.branches(at)).branches.sort().join() === 'main,side'),
    deleteBranch: () => git.deleteBranch(at, 'side', { force: true }),
    restore: async () => {
      await files.write(`${at}/file.txt`, 'two')
      await git.restore(at, { paths: ['file.txt'] })
    },
    reset: async () => {
      await files.write(`${at}/file.txt`, 'three')
      await git.add(at)
      await git.commit(at, 'three', author)
      await git.reset(at, { mode: 'hard', target: 'HEAD~1' })
    },
    dangerouslyAuthenticate: () =>
      git.dangerouslyAuthenticate({ username: 'u', password: 'p', host: 'git.example.com' }),
  }
}

/** Its builder's methods only write down what a build would do: one call stands for them all. */
function templateCalls(builders: string[]): Calls {
  const given: Record<string, unknown[]> = {
    fromDockerfile: ['FROM debian'], fromTemplate: ['base'], fromImage: ['debian'],
    fromAWSRegistry: ['x.example/y', { accessKeyId: 'a', secretAccessKey: 'b', region: 'c' }],
    fromGCPRegistry: ['x.example/y', { serviceAccountJSON: {} }],
    copy: ['a', '/a'], copyItems: [[]], remove: ['/a'], rename: ['/a', '/b'], makeDir: ['/a'], makeSymlink: ['/a', '/b'],
    runCmd: ['true'], setWorkdir: ['/'], setUser: ['user'], pipInstall: ['x'], npmInstall: ['x'], bunInstall: ['x'],
    aptInstall: ['x'], addMcpServer: ['exa'], gitClone: ['https://git.example.com/x', '/x'], setEnvs: [{ A: '1' }],
    setStartCmd: ['true', 'true'], setReadyCmd: ['true'], betaDevContainerPrebuild: ['/a'],
    betaSetDevContainerStart: ['/a'],
  } // prettier-ignore
  const ofServers = ['addMcpServer']
  const ofContainers = ['betaDevContainerPrebuild', 'betaSetDevContainerStart']
  const start = (name: string): any => {
    if (name.startsWith('from') || name === 'skipCache') return Template()
    if (ofServers.includes(name)) return Template().fromTemplate('mcp-gateway')
    return ofContainers.includes(name) ? Template().fromTemplate('devcontainer') : Template().fromImage('debian')
  }
  const built = Object.fromEntries(builders.map((name) => [name, () => start(name)[name](...(given[name] ?? []))]))
  const info: any = { name: 'x', templateId: 'base', buildId: '00000000-0000-0000-0000-000000000000', tags: [] }
  return {
    ...built,
    toJSON: () => Template.toJSON(image),
    toDockerfile: () => Template.toDockerfile(image),
    exists: async () => works(await Template.exists('base')),
    aliasExists: async () => works(await Template.aliasExists('base')),
    build: () => Template.build(image, 'name'),
    buildInBackground: () => Template.buildInBackground(image, 'name'),
    getBuildStatus: () => Template.getBuildStatus(info),
    assignTags: () => Template.assignTags('base:x', 'y'),
    removeTags: () => Template.removeTags('base', 'y'),
    getTags: () => Template.getTags('base'),
  }
}

function volumeCalls(): Calls {
  const volume: any = Reflect.construct(Volume as any, ['v', 'data', 't'])
  return {
    create: () => Volume.create('data'),
    connect: () => Volume.connect('v'),
    destroy: () => Volume.destroy('v'),
    list: () => Volume.list(),
    getInfo: () => Volume.getInfo('v'),
    exists: () => volume.exists('x'),
    makeDir: () => volume.makeDir('x'),
    readFile: () => volume.readFile('x'),
    writeFile: () => volume.writeFile('x', 'y'),
    remove: () => volume.remove('x'),
    updateMetadata: () => volume.updateMetadata('x', { mode: 0o644 }),
  }
}

function secretCalls(): Calls {
  return {
    create: () => Secret.create('name', 'value'),
    update: () => Secret.update('name', 'value'),
    destroy: () => Secret.destroy('name'),
    exists: () => Secret.exists('name'),
    getInfo: () => Secret.getInfo('name'),
    list: () => Secret.list().nextItems(),
    fill: () => Secret.fill('name'),
    iamToken: () => Secret.iamToken({ audience: 'a', tokenType: 'JWT-SVID' } as any),
  }
}

function interpreterCalls(sandbox: any): Calls {
  return {
    runCode: async () => works((await sandbox.runCode('1+1')).text === '2'),
    createCodeContext: async () => (made.context = await sandbox.createCodeContext({ language: 'python' })),
    listCodeContexts: async () =>
      works((await sandbox.listCodeContexts()).some((context: any) => context.id === made.context.id)),
    restartCodeContext: () => sandbox.restartCodeContext(made.context),
    removeCodeContext: () => sandbox.removeCodeContext(made.context),
  }
}

// --- all of it -------------------------------------------------------------------------------------------

const kept = hidden('e2b')
const sandbox: any = await Sandbox.create({ timeoutMs: 600_000, metadata: { of: 'support' } })
try {
  const second = await Sandbox.create({ timeoutMs: 60_000 })
  await all('Sandbox', methods(Sandbox), kept, sandboxCalls(sandbox, second), ['getHost', 'downloadUrl', 'uploadUrl'])
  await all('commands', methods(sandbox.commands.constructor), kept, await commandCalls(sandbox))
  const handle = await sandbox.commands.run('true', { background: true })
  await all('CommandHandle', methods(handle.constructor), kept, await handleCalls(sandbox))
  await all('pty', methods(sandbox.pty.constructor), kept, ptyCalls(sandbox))
  await all('files', methods(sandbox.files.constructor), kept, fileCalls(sandbox))
  await all('WatchHandle', methods(made.watch.constructor), kept, { stop: () => made.watch.stop() })
  await all('git', methods(sandbox.git.constructor), kept, gitCalls(sandbox))
} finally {
  await sandbox.kill()
}
const ofTemplates = methods((e2b as any).TemplateBase)
const asked = Object.keys(templateCalls([]))
const builders = [...ofTemplates].filter((name) => !kept.has(name) && !asked.includes(name))
await all('Template', ofTemplates, kept, templateCalls(builders), [...builders, 'toJSON', 'toDockerfile'])
await all('Volume', methods(Volume), kept, volumeCalls())
await all('Secret', methods(Secret), kept, secretCalls(), ['fill', 'iamToken'])
const box: any = await interpreter.Sandbox.create({ timeoutMs: 600_000 })
try {
  const own = methods(interpreter.Sandbox, Sandbox)
  await all('Interpreter', own, hidden('@e2b/code-interpreter'), interpreterCalls(box))
} finally {
  await box.kill()
}
process.stdout.write(JSON.stringify(results), () => process.exit(0))
