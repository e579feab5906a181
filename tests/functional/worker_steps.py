"""Holding a file operation's worker at a system call, by ptrace(2) from the host: the agent's binary is the real one.

The agent does each operation in a child. `Steps` seizes the agent until it has forked one, lets the agent go, and then
runs the child from one system call to the next. All calls are made by one thread: a tracer is a thread.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable
from typing import NamedTuple

_SEIZE, _SYSCALL, _DETACH, _GETEVENTMSG, _GET_SYSCALL_INFO = 0x4206, 24, 17, 0x4201, 0x420E
_TRACESYSGOOD, _TRACEFORK, _TRACEVFORK, _TRACECLONE = 1, 2, 4, 8
_FORKS = (1, 2, 3)
_WALL = 0x40000000
_ENTRY, _EXIT = 1, 2
_INFO = struct.Struct("<BxxxIQQ")
_NUMBERS = {
    "x86_64": {"openat": 257, "write": 1, "fchmod": 91, "fsync": 74, "renameat": 264},
    "aarch64": {"openat": 56, "write": 64, "fchmod": 52, "fsync": 82, "renameat": 38},
}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Call(NamedTuple):
    """A system call that has returned `result` without an error."""

    name: str
    arguments: tuple[int, ...]
    result: int


class Steps:
    def __init__(self, agent: int) -> None:
        self._agent = agent
        self._worker: int | None = None
        self._names = {number: name for name, number in _NUMBERS[platform.machine()].items()}
        options = _TRACESYSGOOD | _TRACEFORK | _TRACEVFORK | _TRACECLONE
        _ptrace(_SEIZE, agent, 0, options)

    def wait_worker(self) -> None:
        """Until the agent has forked one; the agent then runs on by itself."""
        while True:
            _, status = os.waitpid(self._agent, _WALL)
            assert os.WIFSTOPPED(status), "the agent has ended"
            if status >> 16 in _FORKS:
                message = ctypes.c_ulong()
                _ptrace(_GETEVENTMSG, self._agent, 0, ctypes.addressof(message))
                self._worker = message.value
                _ptrace(_DETACH, self._agent, 0, 0)
                os.waitpid(self._worker, _WALL)
                return
            _ptrace(_SYSCALL, self._agent, 0, os.WSTOPSIG(status) if os.WSTOPSIG(status) < signal.SIGTRAP else 0)

    def run_behind(self, wanted: Callable[[Call], bool]) -> Call:
        """The worker runs until such a call has returned, and is held there."""
        assert self._worker is not None
        pending, number, arguments = 0, -1, ()
        while True:
            _ptrace(_SYSCALL, self._worker, 0, pending)
            _, status = os.waitpid(self._worker, _WALL)
            assert os.WIFSTOPPED(status), f"the worker has ended ({status:#x}) before that call"
            stop = os.WSTOPSIG(status)
            pending = 0
            if stop != signal.SIGTRAP | 0x80:
                pending = stop if status >> 16 == 0 else 0
                continue
            raw = ctypes.create_string_buffer(96)
            _ptrace(_GET_SYSCALL_INFO, self._worker, len(raw), ctypes.addressof(raw))
            if raw.raw[0] == _ENTRY:
                number, *rest = struct.unpack_from("<7Q", raw.raw, _INFO.size)
                arguments = tuple(rest)
            elif raw.raw[0] == _EXIT and number in self._names:
                result, is_error = struct.unpack_from("<qB", raw.raw, _INFO.size)
                call = Call(self._names[number], arguments, result)
                if not is_error and wanted(call):
                    return call

    def let_go(self) -> None:
        """The worker runs on by itself."""
        if self._worker is not None:
            _ptrace(_DETACH, self._worker, 0, 0)
            self._worker = None


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace({request:#x}, {pid}): {os.strerror(number)}")
