"""The cgroups of a machine's executions, driven by the node alone: the helper has given it the machine's group.

A group per execution is a child of the machine's group in the unified mount. The agent's child joins it through a
descriptor of cgroup.procs that the node opened; that works because the agent itself is inside the machine's group.
Waiting is by poll(2) on cgroup.events, through an epoll descriptor: the event loop's own polling has no POLLPRI.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import select
import time
from pathlib import Path

from bellglass import faultpoints, ids
from bellglass.errors import InternalError
from bellglass.node.helper import cgroup
from bellglass.node.helper.cgroup import Layout

__all__ = ["MachineGroups", "wait_group_empty"]

_RECHECK_S = 1.0
_LATELY_S = 1.0


class MachineGroups:
    """`Groups` of the driver contract, for machines whose processes the host sees."""

    def __init__(self, layout: Layout, installation: str, sandbox_id: str) -> None:
        name = cgroup.group_name(installation, sandbox_id)
        self.root = layout.group(name)
        self._memory = layout.memory / name
        self._cpuacct = layout.cpuacct / name
        self._is_v2 = layout.is_v2
        self._oom_kills = self._count_oom_kills() if self._memory.exists() else 0
        self._oom_killed_at = -math.inf

    def make(self, execution_id: str) -> int:
        group = self._group(execution_id)
        group.mkdir(exist_ok=True)
        faultpoints.reach("node.exec.grouped")
        return os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def kill(self, execution_id: str) -> None:
        cgroup.kill(self._group(execution_id))

    async def wait_empty(self, execution_id: str, deadline: float) -> bool:
        return await wait_group_empty(self._group(execution_id), deadline)

    def remove(self, execution_id: str) -> None:
        try:
            self._group(execution_id).rmdir()
        except FileNotFoundError:
            return

    def freeze(self, *, frozen: bool) -> None:
        """Asks only: the kernel freezes within milliseconds. A group that ends meanwhile is left out."""
        for execution_id in self.executions():
            try:
                (self._group(execution_id) / "cgroup.freeze").write_text("1" if frozen else "0")
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise

    def not_frozen(self) -> list[str]:
        return [one for one in self.executions() if cgroup.is_running_on(self._group(one))]

    def unwritten_bytes(self) -> int:
        names = ("file_dirty", "file_writeback") if self._is_v2 else ("total_dirty", "total_writeback")
        try:
            return sum(_counted(self._memory / "memory.stat", *names).values())
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return 0  # it ends just now
            raise

    def cpu_ns(self) -> int:
        """CPU time of all processes that are or were in it."""
        if not self._is_v2:
            return int((self._cpuacct / "cpuacct.usage").read_bytes())
        return _counted(self._cpuacct / "cpu.stat", "usage_usec")["usage_usec"] * 1000

    def memory_bytes(self) -> tuple[int, int]:
        """In use, and of files: what the kernel would drop for others."""
        names = ("active_file", "inactive_file") if self._is_v2 else ("total_active_file", "total_inactive_file")
        charged = int((self._memory / ("memory.current" if self._is_v2 else "memory.usage_in_bytes")).read_bytes())
        of_files = sum(_counted(self._memory / "memory.stat", *names).values())
        return max(charged - of_files, 0), of_files

    def oom_kills(self) -> int:
        count = self._count_oom_kills()
        if count > self._oom_kills:
            self._oom_kills, self._oom_killed_at = count, time.monotonic()
        return count

    def _count_oom_kills(self) -> int:
        file = self._memory / ("memory.events" if self._is_v2 else "memory.oom_control")
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        raise InternalError(f"{file} does not count oom kills", hint="Linux 4.13 or newer is needed")

    def oom_killed_lately(self) -> bool:
        """Whether the kernel has killed for memory within the last second, also if somebody has asked meanwhile."""
        try:
            self.oom_kills()
        except FileNotFoundError:
            pass  # the group is removed: what was seen before counts
        return time.monotonic() - self._oom_killed_at <= _LATELY_S

    def executions(self) -> list[str]:
        try:
            return [path.name for path in self.root.iterdir() if ids.EXECUTION_ID.fullmatch(path.name)]
        except FileNotFoundError:
            return []

    def _group(self, execution_id: str) -> Path:
        if not ids.EXECUTION_ID.fullmatch(execution_id):
            raise InternalError(f"{execution_id!r} is not the id of an execution")
        return self.root / execution_id


def _counted(file: Path, *names: str) -> dict[str, int]:
    """Lines `name number` of these names."""
    lines = (line.partition(" ") for line in file.read_text().splitlines())
    return {name: int(value) for name, _, value in lines if name in names}


async def wait_group_empty(group: Path, deadline: float) -> bool:
    """Until no process is in the group or below (True; gone is empty), or the loop time `deadline` has passed."""
    loop = asyncio.get_running_loop()
    try:
        events = os.open(group / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    poll = select.epoll(flags=select.EPOLL_CLOEXEC)
    changed = asyncio.Event()
    try:
        poll.register(events, select.EPOLLPRI | select.EPOLLERR)
        loop.add_reader(poll, changed.set)
        # Reading the file is what takes its event back, so nothing between the two is missed.
        while _is_populated(events):
            changed.clear()
            left = deadline - loop.time()
            if left <= 0:
                return False
            timer = loop.call_later(min(left, _RECHECK_S), changed.set)
            await changed.wait()
            timer.cancel()
        return True
    finally:
        loop.remove_reader(poll)
        poll.close()
        os.close(events)


def _is_populated(events: int) -> bool:
    try:
        return b"populated 1" in os.pread(events, 4096, 0).splitlines()
    except OSError as error:
        if error.errno == errno.ENODEV:
            return False  # removed
        raise
