"""A process that does the operations, one after the other: forked from the helper's loop, which stays untouched.

A crash is an error of the operation under way, and namespaces and ids are the worker's own to change. Afterwards it
leaves the mounts of a start and steps forward again. What then does not look as it did when it was forked (descriptors,
namespaces, ids, priority) is not used again: the kernel clears up behind it, as behind one that failed.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bellglass.node.helper import kernel, priority

MAX_OPERATIONS = 200
"""Cycles of objects are not collected in a worker: it would copy the pages that it shares with the helper."""
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "user", "uts")
_MAX_MESSAGE_BYTES = 65536
_READY = b"."


@dataclass(eq=False, slots=True)
class Worker:
    """The helper's view of one. Messages to it are requests; what it says is that it is ready for the next."""

    pid: int
    channel: socket.socket

    def give(self, request: bytes) -> bool:
        """False when it has died."""
        try:
            self.channel.send(request)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def is_ready(self) -> bool:
        """Call it when there is something to read. A worker that ends says nothing."""
        try:
            return self.channel.recv(len(_READY)) == _READY
        except ConnectionResetError:
            return False


def fork(others: Iterable[Worker], act: Callable[[bytes], bool]) -> Worker:
    """A worker that calls `act` with each request; when it answers False, that was the worker's last one. Raises
    OSError when the host has no process, memory or descriptor left for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid:
        theirs.close()
        return Worker(pid, ours)
    code = 1
    try:
        gc.disable()
        kernel.die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ours.close()
        for other in others:
            other.channel.close()  # an open one would hide its end from the helper's other workers
        _serve(theirs, act)
        code = 0
    finally:
        os._exit(code)


def _serve(channel: socket.socket, act: Callable[[bytes], bool]) -> None:
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    nice, before = os.getpriority(os.PRIO_PROCESS, 0), _marks()
    for left in reversed(range(MAX_OPERATIONS)):
        request = channel.recv(_MAX_MESSAGE_BYTES)
        if not request or not act(request):
            return
        if _namespace("mnt") != before[1]["mnt"]:
            kernel.setns(home, kernel.CLONE_NEWNS)
        if os.getpriority(os.PRIO_PROCESS, 0) != nice:
            priority.restore(os.getpid(), nice)
        if not left or _marks() != before:
            return
        channel.send(_READY)


def _marks() -> tuple[object, dict[str, object], object, object]:
    """What an operation could leave behind in its process."""
    descriptors = os.listdir("/proc/self/fd")  # noqa: PTH208 - names alone
    namespaces = {name: _namespace(name) for name in _NAMESPACES}
    return descriptors, namespaces, (os.getresuid(), os.getresgid(), os.getgroups()), os.getpriority(os.PRIO_PROCESS, 0)


def _namespace(kind: str) -> object:
    return os.stat(f"/proc/self/ns/{kind}").st_ino  # noqa: PTH116 - eight after each operation
