"""Starting a kernel: a process in a session of its own, with its output in pipes and a channel of messages.

Python's is forked from this process, which has imported what it needs before: one that died is replaced at once.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from bellglass_kernels import bash_kernel
from bellglass_kernels.lines import encode

LANGUAGES = ("python", "javascript", "bash")
PLACE = Path(__file__).resolve().parent
_CHANNEL_FD = 3
_NODE_OPTIONS = ["--disable-warning=ExperimentalWarning"]


class Kernel:
    """A kernel that runs. `stdout`, `stderr` and `channel` don't block; `pidfd` is readable when it has ended."""

    def __init__(self, language: str, pid: int, stdout: int, stderr: int, channel: socket.socket) -> None:
        self.language = language
        self._count = 0
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self._socket = channel
        self.channel = channel.fileno()
        self.pidfd = os.pidfd_open(pid)
        for fd in (stdout, stderr):
            os.set_blocking(fd, False)
        self._oom_kills = oom_kills()

    def run(self, code: str, env: dict[str, str]) -> None:
        self._count += 1
        self._oom_kills = oom_kills()
        if self.language == "bash":
            self.send(bash_kernel.script(code, env, self._count))
        else:
            self.send(encode({"code": code, "env": env}))

    def send(self, data: bytes) -> None:
        self._socket.setblocking(True)
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it died, and `pidfd` says so
        finally:
            self._socket.setblocking(False)

    def signal(self, number: int) -> None:
        """To it and to what it started."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def reap(self) -> dict[str, Any]:
        """How it ended, once it has; what it started and left is killed."""
        self.signal(signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        for fd in (self.stdout, self.stderr, self.pidfd):
            os.close(fd)
        self._socket.close()
        if not os.WIFSIGNALED(status):
            return {"reason": "exited", "code": os.WEXITSTATUS(status)}
        number = os.WTERMSIG(status)
        oom = number == signal.SIGKILL and oom_kills() > self._oom_kills
        return {"reason": "oom" if oom else "signal", "signal": signal.Signals(number).name}


def start(language: str, cwd: str) -> Kernel:
    if language == "python":
        python_kernel = _imported()
    ours, theirs = socket.socketpair()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(cwd, out_write, err_write, theirs.fileno())
            if language == "python":
                os._exit(python_kernel.main(_CHANNEL_FD))
            if language == "bash":
                os.dup2(_CHANNEL_FD, 0)
                os.dup2(_CHANNEL_FD, bash_kernel.CHANNEL_FD)
                os.close(_CHANNEL_FD)
                os.execv("/bin/bash", bash_kernel.ARGV)
            os.execv("/usr/local/bin/node", ["node", *_NODE_OPTIONS, str(PLACE / "javascript_kernel.js")])
        except BaseException as error:
            os.write(2, f"the kernel does not start: {error!r}\n".encode())
        finally:
            os._exit(127)
    for fd in (out_write, err_write):
        os.close(fd)
    theirs.close()
    ours.setblocking(False)
    kernel = Kernel(language, pid, out_read, err_read, ours)
    if language == "bash":
        kernel.send(bash_kernel.READY)
    return kernel


def _imported() -> ModuleType:
    # Completion is nobody's here, and jedi would be a third of the time that this takes.
    sys.modules.setdefault("jedi", None)  # type: ignore[arg-type]
    from bellglass_kernels import python_kernel

    if sys.modules["jedi"] is None:
        del sys.modules["jedi"]
    return python_kernel


def _become(cwd: str, out: int, err: int, channel: int) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # The channel may be at 3 already or be overwritten by what goes there: first out of the way.
    high = [os.dup(fd) for fd in (out, err, channel)]
    for target, fd in zip((1, 2, _CHANNEL_FD), high, strict=True):
        os.dup2(fd, target)
    os.closerange(_CHANNEL_FD + 1, 1024)
    # Of all in this sandbox the one that holds the data is to go when memory ends, not its host.
    Path("/proc/self/oom_score_adj").write_text("800")
    os.chdir(cwd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115


def oom_kills() -> int:
    """How often the machine has killed for want of memory. A sandbox sees no closer count than that of its host, so it
    is looked at over one run only."""
    with open("/proc/vmstat") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
