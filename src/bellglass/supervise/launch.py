"""Starting the daemons: what each one's argv, environment, uid and descriptors are.

The node's launcher is forked by the supervisor as root, forks the helper (which so becomes the node's child and dies
with it), and only then drops to the node's uid and executes the node. They talk over an inherited socketpair: there is
no address at which anybody else could reach the helper.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bellglass import scheduling
from bellglass.datadir import cache_dir
from bellglass.errors import SandboxFailed
from bellglass.settings import SETTINGS
from bellglass.supervise import view
from bellglass.supervise.install import Identity, Installation
from bellglass.supervise.processes import ProcessId

READY_TIMEOUT_S = 30.0
HELPER_FD = 3
DESCRIPTORS = 131_072
_PR_SET_NO_NEW_PRIVS, _PR_SET_PDEATHSIG, _SIGTERM = 38, 1, 15
_KEPT_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")

_PACKAGE_TOOLS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "npm_config_registry")
"""The node asks its tools what they are set up with, for the presets."""


@dataclass(frozen=True, slots=True)
class Started:
    process: ProcessId
    ready: Mapping[str, Any]
    """The daemon's one line on standard output."""
    helper: ProcessId | None = None


def environment() -> dict[str, str]:
    """What a daemon gets: settings, but no key of a client.

    glibc would map and unmap each piece of a transfer anew, and page faults for fresh memory would be a third of what a
    transfer costs the daemons; so pieces come from the heap, which keeps at most 32 MiB that it doesn't use.
    """
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    names = [setting.env_name for setting in SETTINGS]
    kept |= {name: os.environ[name] for name in names if name in os.environ}
    # The default depends on who asks: the daemons must mean the supervisor's.
    kept["BELLGLASS_CACHE"] = str(cache_dir())
    kept |= {"MALLOC_MMAP_THRESHOLD_": str(16 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"} | kept


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", *arguments]


def server_argv(installation: Installation, *, listen: str | None, port: int | None) -> list[str]:
    argv = python("bellglass.server", "--data-dir", str(installation.data.root))
    argv += ["--listen", listen] if listen is not None else []
    argv += ["--port", str(port)] if port is not None else []
    return argv


def node_argv(installation: Installation) -> list[str]:
    return python("bellglass.node", "--data-dir", str(installation.data.root))


def helper_argv(installation: Installation) -> list[str]:
    return python(
        "bellglass.node.helper",
        *("--data-dir", str(installation.data.root), "--cache-dir", str(cache_dir())),
        *("--installation", installation.id, "--node-uid", str(installation.node.uid)),
        *("--node-gid", str(installation.node.gid), "--fd", str(HELPER_FD)),
        *("--proxy-uid", str(installation.proxy.uid), "--resolver-uid", str(installation.resolver.uid)),
        *("--proxy-gid", str(installation.proxy.gid), "--resolver-gid", str(installation.resolver.gid)),
    )


def egress_argv(installation: Installation, name: str, config: Mapping[str, Any]) -> list[str]:
    options = ("--data-dir", str(installation.data.root), "--config", json.dumps(dict(config)))
    return python(f"bellglass.egress.{name}", *options)


def start_server(installation: Installation, *, listen: str | None, port: int | None) -> Started:
    argv, variables = server_argv(installation, listen=listen, port=port), environment()

    def become() -> None:
        _drop(installation.server)
        os.execve(argv[0], argv, variables)

    log_file = installation.data.logs_dir / "server.log"
    begun = _size(log_file)
    pid, output = _fork(become, log_file)
    return _await_ready("server", pid, output, log_file, begun)


def start_node(installation: Installation, *, with_helper: bool) -> Started:
    """The node, and as root its helper. Both are up when the node has said so."""
    argv, variables = node_argv(installation), environment()
    variables |= {name: os.environ[name] for name in _PACKAGE_TOOLS if name in os.environ}
    report_read, report_write = os.pipe2(os.O_CLOEXEC)

    def become() -> None:
        if with_helper:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            helper = _fork_helper(installation, theirs, launcher=os.getpid())
            theirs.close()
            os.write(report_write, str(helper).encode())
            ours.set_inheritable(True)
            variables["BELLGLASS_HELPER_FD"] = str(ours.fileno())
            ours.detach()
        _drop(installation.node)
        os.execve(argv[0], argv, variables)

    log_file = installation.data.logs_dir / "node.log"
    begun = _size(log_file)
    pid, output = _fork(become, log_file)
    os.close(report_write)
    with os.fdopen(report_read, "rb") as report:
        raw = report.read()
    started = _await_ready("node", pid, output, log_file, begun)
    try:
        return Started(started.process, started.ready, ProcessId.of(int(raw)) if raw else None)
    except ProcessLookupError:
        # It died in this moment: the node is about to notice, and is of no use any more.
        started.process.kill()
        reap(started.process)
        raise _did_not_start("the helper", installation.data.logs_dir / "helper.log", 0) from None


def start_egress(installation: Installation, name: str, config: Mapping[str, Any]) -> Started:
    """`proxy` or `resolver`. It begins as root and gives that up itself, once all that it needs is imported."""
    argv, variables = egress_argv(installation, name, config), environment()
    # A pool of memory that it doesn't use is for those who move pieces of files.
    variables = {key: value for key, value in variables.items() if not key.startswith(("BELLGLASS_", "MALLOC_"))}
    log_file = installation.data.logs_dir / f"{name}.log"
    begun = _size(log_file)

    def become() -> None:
        if name == "proxy":
            scheduling.relay()
        os.execve(argv[0], argv, variables)

    pid, output = _fork(become, log_file)
    return _await_ready(name, pid, output, log_file, begun)


def start_lxcfs(installation: Installation, program: str) -> ProcessId:
    """lxcfs on a mount of this installation. It outlives the daemons: running sandboxes read through it."""
    data = installation.data
    data.lxcfs_dir.mkdir(exist_ok=True, mode=0o755)
    argv = [program, "--foreground", "--enable-loadavg", f"--pidfile={data.run_dir / 'lxcfs.pid'}", str(data.lxcfs_dir)]
    log_file = data.logs_dir / "lxcfs.log"

    def become() -> None:
        os.umask(0o022)
        os.execve(program, argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

    begun = _size(log_file)
    pid, output = _fork(become, log_file)
    os.close(output)
    process = ProcessId.of(pid)
    deadline = time.monotonic() + 5
    probe = data.lxcfs_dir / "proc/meminfo"
    # FUSE gives no event for "mounted and answering": look until it does.
    while not probe.exists():
        if not process.alive() or time.monotonic() > deadline:
            process.stop(1.0)
            reap(process)
            raise _did_not_start("lxcfs", log_file, begun)
        time.sleep(0.01)
    return process


def _fork(become: Callable[[], None], log_file: Path) -> tuple[int, int]:
    """Fork a child that becomes a daemon; answers its pid and the read end of its standard output."""
    read, write = os.pipe2(os.O_CLOEXEC)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(write, 1)
            os.dup2(log, 2)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())  # the supervisor blocks what it waits for
            os.setsid()
            os.chdir("/")
            os.umask(0o077)
            become()
        except BaseException as error:  # noqa: BLE001 - a child must never return into the supervisor's code
            os.write(2, f"bellglass: could not start: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)
    os.close(write)
    os.close(log)
    return pid, read


def _fork_helper(installation: Installation, channel: socket.socket, *, launcher: int) -> int:
    argv = helper_argv(installation)
    log_file = installation.data.logs_dir / "helper.log"
    pid = os.fork()
    if pid:
        return pid
    try:
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.umask(0o022)  # it makes folders that sandboxes pass through
        os.dup2(channel.fileno(), HELPER_FD)
        os.set_inheritable(HELPER_FD, True)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGTERM, 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(1)  # the launcher died before the line above counted
        os.closerange(HELPER_FD + 1, 4096)
        os.execve(argv[0], argv, environment())
    except BaseException as error:  # noqa: BLE001 - as above
        os.write(2, f"bellglass: could not start the helper: {error}\n".encode())
    finally:
        os._exit(1)


def _drop(identity: Identity) -> None:
    """Leave root for good: the view of the file system, groups, gid, uid, and no way back by setuid programs."""
    raise_descriptor_limit()
    if os.geteuid() != 0:
        return
    view.enter(view.code_paths())
    os.setgroups([])
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_NO_NEW_PRIVS) failed")


def raise_descriptor_limit() -> None:
    """A connection is a descriptor in the server, an execution a few in the node. Root may raise its hard limit, but in
    some containers it may not: then the daemons make do with what there is."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(most, DESCRIPTORS)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _await_ready(name: str, pid: int, output: int, log_file: Path, begun: int) -> Started:
    """The daemon's ready line. Raises SandboxFailed with the end of its log when it dies or stays silent."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    raw = b""
    with os.fdopen(output, "rb", buffering=0) as stream:
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        while not raw.endswith(b"\n"):
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                break
            piece = stream.read(65536)
            if not piece:
                break
            raw += piece
    try:
        ready = json.loads(raw)
        return Started(ProcessId.of(pid), ready)
    except (ValueError, ProcessLookupError):
        pass
    try:
        process = ProcessId.of(pid)
    except ProcessLookupError:
        process = None
    if process is not None:
        process.stop(1.0)
        reap(process)
    raise _did_not_start(f"the {name}", log_file, begun)


def _did_not_start(what: str, log_file: Path, begun: int) -> SandboxFailed:
    """With the last lines that this start wrote: what stands before `begun` are earlier ones' errors."""
    lines = log_file.read_bytes()[begun:].decode(errors="replace").strip().splitlines()[-12:]
    hint = f"the whole log: {log_file}"
    if lines and lines[-1].endswith("Address already in use"):
        hint = "choose another --port; 0 takes a free one"
    return SandboxFailed("\n  ".join([f"{what} did not start:", *lines]), hint=hint)


def _size(log_file: Path) -> int:
    return log_file.stat().st_size if log_file.exists() else 0


def reap(process: ProcessId) -> None:
    """Take the exit status of a child; nothing for a process that an earlier supervisor started."""
    try:
        os.waitpid(process.pid, 0)
    except ChildProcessError:
        return
