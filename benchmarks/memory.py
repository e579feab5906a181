"""How much memory processes took meanwhile: high-water marks from the kernel, not samples that miss the peak.

Writing 5 to /proc/PID/clear_refs sets a process's VmHWM back to what it has now; afterwards VmHWM is the exact peak of
its resident memory, file pages that it maps included, so the growth told here is never too small. The agent serves
each file operation in a short-lived process, which takes its high-water mark with it when it ends: its group is
looked at in a thread of its own as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from bellglass.testing import kernel

AGENT = "bellglass-agent"
LOOK_AGAIN_S = 0.02
MIB = 1 << 20


def resident_bytes(pid: int) -> int:
    return _status_bytes(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Since the process began, or since `forget_peak`; 0 when it is gone."""
    return _status_bytes(pid, "VmHWM")


def forget_peak(pid: int | str = "self") -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status_bytes(pid: int, name: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended between two looks, which for an operation's own process is the rule
    return 0


def agent_pids(sandbox_id: str) -> list[int]:
    """The agent of a sandbox and the processes that it serves operations with, by their program."""
    found = []
    for process in kernel.processes():
        if sandbox_id in process.cgroups:
            try:
                program = Path(f"/proc/{process.pid}/exe").readlink().name
            except OSError:
                continue
            if program == AGENT:
                found.append(process.pid)
    return found


class Growth:
    """`with Growth({"server": pid, ...}, agents=lambda: [...]) as growth: ...; growth.bytes` by process name."""

    def __init__(self, pids: Mapping[str, int], agents: Callable[[], Iterable[int]] | None = None) -> None:
        self._pids = dict(pids)
        self._agents = agents
        self._before: dict[str, int] = {}
        self._agents_peak = 0
        self._agents_before = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.bytes: dict[str, int] = {}

    def __enter__(self) -> Growth:
        for name, pid in self._pids.items():
            forget_peak(pid)
            self._before[name] = resident_bytes(pid)
        if self._agents is not None:
            for pid in (agents := list(self._agents())):
                forget_peak(pid)
            self._agents_before = sum(map(resident_bytes, agents))
            self._thread = threading.Thread(target=self._watch_agents, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self.bytes["agent"] = max(self._agents_peak - self._agents_before, 0)
        for name, pid in self._pids.items():
            self.bytes[name] = max(peak_bytes(pid) - self._before[name], 0)

    def _watch_agents(self) -> None:
        assert self._agents is not None
        while True:
            self._agents_peak = max(self._agents_peak, sum(map(peak_bytes, self._agents())))
            # The kernel has no event for another process's memory.
            if self._done.wait(LOOK_AGAIN_S):
                return
