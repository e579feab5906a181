"""Trees of processes for the fake driver: real cgroups where we may make them, else descendants and sessions."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bellglass import ids

UNIFIED = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
POLL_S = 0.005


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: tells it from another one with the same pid."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(pid: int, ticks: int | None) -> bool:
    """Not counting a zombie; one of our own children is reaped by the way."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # of an earlier node
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" and start_ticks(pid) == ticks


class CgroupTrees:
    """One cgroup per execution, as the real drivers have it."""

    def __init__(self, sandbox_id: str, fault: Callable[..., Any]) -> None:
        self._root = self._root_of(sandbox_id)
        self._fault = fault
        self._root.mkdir(exist_ok=True)

    @staticmethod
    def _mount() -> Path | None:
        return next((path for path in UNIFIED if (path / "cgroup.procs").exists()), None)

    @classmethod
    def _root_of(cls, sandbox_id: str) -> Path:
        mount = cls._mount()
        assert mount is not None
        return mount / f"bgfake-{sandbox_id}"

    @classmethod
    def usable(cls) -> bool:
        mount = cls._mount()
        return mount is not None and os.geteuid() == 0 and os.access(mount, os.W_OK)

    @classmethod
    def remove_all(cls, sandbox_id: str) -> None:
        if cls.usable() and (root := cls._root_of(sandbox_id)).exists():
            for group in [*(p for p in root.iterdir() if p.is_dir()), root]:
                group.rmdir()

    @classmethod
    async def kill_leftovers(cls, sandbox_id: str) -> None:
        root = cls._root_of(sandbox_id)
        cls._kill(root)
        await _until(lambda: not cls._populated(root), asyncio.get_running_loop().time() + 5)

    def make(self, execution_id: str) -> int:
        group = self._root / execution_id
        group.mkdir(exist_ok=True)
        return os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def kill(self, execution_id: str) -> None:
        if not self._fault("undying_groups"):
            self._kill(self._root / execution_id)

    async def kill_all(self) -> None:
        """Returns when they are dead."""
        self._kill(self._root)
        await _until(lambda: not self._populated(self._root), asyncio.get_running_loop().time() + 5)

    async def wait_empty(self, execution_id: str, deadline: float) -> bool:
        return await _until(lambda: not self._populated(self._root / execution_id), deadline)

    def remove(self, execution_id: str) -> None:
        try:
            (self._root / execution_id).rmdir()
        except FileNotFoundError:
            return

    def freeze(self, *, frozen: bool) -> None:
        for group in self._root.iterdir():
            if group.is_dir():
                (group / "cgroup.freeze").write_text("1" if frozen else "0")

    def not_frozen(self) -> list[str]:
        groups = [group for group in self._root.iterdir() if group.is_dir()]
        return [group.name for group in groups if {"populated 1", "frozen 0"} <= self._events(group)]

    def unwritten_bytes(self) -> int:
        return int(self._fault("unwritten_bytes", 0))

    def oom_kills(self) -> int:
        return int(self._fault("oom_kills", 0))

    def executions(self) -> list[str]:
        return [path.name for path in self._root.iterdir() if ids.EXECUTION_ID.fullmatch(path.name)]

    @staticmethod
    def _events(group: Path) -> set[str]:
        try:
            return set((group / "cgroup.events").read_text().splitlines())
        except FileNotFoundError:
            return set()

    @staticmethod
    def _kill(group: Path) -> None:
        try:
            (group / "cgroup.kill").write_text("1")
        except FileNotFoundError:
            return

    @staticmethod
    def _populated(group: Path) -> bool:
        return "populated 1" in CgroupTrees._events(group)


class ProcessTrees:
    """Without root: the child writes itself into a socket that tells its pid; its tree is found through /proc. A
    process that left both its session and its parents is missed, which a real driver must not do."""

    def __init__(self, sandbox_id: str, fault: Callable[..., Any]) -> None:
        self._fault = fault
        self._sockets: dict[str, socket.socket] = {}
        self._roots: dict[str, int] = {}

    def make(self, execution_id: str) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.setblocking(False)
        if (old := self._sockets.pop(execution_id, None)) is not None:
            old.close()
        self._sockets[execution_id] = ours
        return theirs.detach()

    def kill(self, execution_id: str) -> None:
        for pid in self._members(execution_id) if not self._fault("undying_groups") else ():
            _kill(pid)

    async def kill_all(self) -> None:
        """Returns when they are dead."""
        deadline = asyncio.get_running_loop().time() + 5
        for execution_id in list(self._sockets):
            for pid in self._members(execution_id):
                _kill(pid)
            await self.wait_empty(execution_id, deadline)
            self._sockets.pop(execution_id).close()

    async def wait_empty(self, execution_id: str, deadline: float) -> bool:
        return await _until(lambda: not self._members(execution_id), deadline)

    def remove(self, execution_id: str) -> None:
        if self._members(execution_id):
            raise OSError("processes are in it")
        if (sock := self._sockets.pop(execution_id, None)) is not None:
            sock.close()
        self._roots.pop(execution_id, None)

    def freeze(self, *, frozen: bool) -> None:
        for execution_id in self._sockets:
            for pid in self._members(execution_id):
                os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def not_frozen(self) -> list[str]:
        return []

    def unwritten_bytes(self) -> int:
        return int(self._fault("unwritten_bytes", 0))

    def oom_kills(self) -> int:
        return int(self._fault("oom_kills", 0))

    def executions(self) -> list[str]:
        return list(self._sockets)

    def _members(self, execution_id: str) -> list[int]:
        root = self._root_pid(execution_id)
        if root is None:
            return []
        table = dict(_processes())
        members = {pid for pid, (_, session) in table.items() if session == root or pid == root}
        while more := {pid for pid, (parent, _) in table.items() if parent in members} - members:
            members |= more
        return sorted(members)

    def _root_pid(self, execution_id: str) -> int | None:
        sock = self._sockets.get(execution_id)
        if execution_id not in self._roots and sock is not None:
            try:
                _, control, _, _ = sock.recvmsg(16, socket.CMSG_SPACE(12))
            except BlockingIOError:
                return None
            for level, kind, data in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    self._roots[execution_id] = struct.unpack("3i", data[:12])[0]
        return self._roots.get(execution_id)


def _processes() -> list[tuple[int, tuple[int, int]]]:
    """(pid, (parent, session)) of all but zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                found.append((int(entry.name), (int(fields[1]), int(fields[3]))))
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


async def _until(condition: Callable[[], bool], deadline: float) -> bool:
    loop = asyncio.get_running_loop()
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_S)  # a fake: the real one polls cgroup.events
    return True
