"""Whether a sandbox fits on this host, and which CPUs it gets.

Each limit counts in full from the moment its create is accepted until its sandbox is reclaimed, against the host's own
size times an overcommit factor: idle sandboxes use far less than their limits. Refusals say which resource, and how
much is free.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bellglass.errors import InvalidRequest, NoCapacity
from bellglass.model import SandboxSpec
from bellglass.units import format_size

PIDS_RESERVE = 4096
PIDS_OVERCOMMIT = 8.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one sandbox was granted."""

    cpu_ids: tuple[int, ...]
    cpus: float
    memory_bytes: int
    disk_bytes: int
    pids: int


class Admission:
    """The sum of what was granted. `data_dir` lies on the disk that holds the sandboxes' disks."""

    def __init__(self, settings: Mapping[str, Any], data_dir: Path) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._host_cpus = sorted(os.sched_getaffinity(0))
        self._load = dict.fromkeys(self._host_cpus, 0.0)
        self._granted: dict[str, Share] = {}
        self.memory_total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def most_cpus(self) -> float:
        return min(float(self._settings["node.max_cpus"]), float(len(self._host_cpus)))

    def grant(self, sandbox_id: str, spec: SandboxSpec, *, cpu_ids: tuple[int, ...] | None = None) -> Share:
        """Reserve, or raise NoCapacity (details.resource) or InvalidRequest (cpus). `cpu_ids` is given for a machine
        that runs already: it is counted, whatever fits. A second call for the same id answers the first's share."""
        if sandbox_id in self._granted:
            return self._granted[sandbox_id]
        if cpu_ids is None:
            self._check(spec)
            count = max(math.ceil(spec.cpus), 1)
            cpu_ids = tuple(sorted(sorted(self._host_cpus, key=lambda cpu: (self._load[cpu], cpu))[:count]))
        share = Share(cpu_ids, spec.cpus, spec.memory_bytes, spec.disk_bytes, spec.pids)
        self._add_load(share, 1.0)
        self._granted[sandbox_id] = share
        return share

    def give_back(self, sandbox_id: str) -> None:
        """Safe to repeat."""
        if (share := self._granted.pop(sandbox_id, None)) is not None:
            self._add_load(share, -1.0)

    def report(self) -> dict[str, Any]:
        """The `capacity` of `node.info`."""
        return {
            "cpus": len(self._host_cpus),
            "memory_bytes": self.memory_total_bytes,
            "disk_bytes": shutil.disk_usage(self._data_dir).total,
            "disk_free_bytes": self._disk_free(),
            "sandboxes": len(self._granted),
            "memory_committed_bytes": self._sum("memory_bytes"),
            "disk_committed_bytes": self._sum("disk_bytes"),
        }

    def _check(self, spec: SandboxSpec) -> None:
        if spec.cpus > self.most_cpus():
            raise InvalidRequest(
                f"cpus: {spec.cpus:g} is more than this node gives to one sandbox",
                hint=f"the most is {self.most_cpus():g}",
                details={"field": "cpus", "most": self.most_cpus()},
            )
        memory = int(self.memory_total_bytes * self._settings["node.memory_overcommit"])
        if spec.memory_bytes > self.memory_total_bytes:
            raise _no_capacity("memory", spec.memory_bytes, self.memory_total_bytes)
        _fits("memory", spec.memory_bytes, memory - self._sum("memory_bytes"))
        room = max(self._disk_free() - self._settings["node.disk_reserve"], 0)
        _fits("disk", spec.disk_bytes, int(room * self._settings["node.disk_overcommit"]) - self._sum("disk_bytes"))
        pids = int(max(_pid_max() - PIDS_RESERVE, 0) * PIDS_OVERCOMMIT)
        if spec.pids > pids - self._sum("pids"):
            free = max(pids - self._sum("pids"), 0)
            raise NoCapacity(
                f"pids: {spec.pids} were asked for, {free} are free on this node",
                hint="ask for less, or delete sandboxes",
                details={"resource": "pids", "free": free},
            )

    def _disk_free(self) -> int:
        return shutil.disk_usage(self._data_dir).free

    def _sum(self, what: str) -> int:
        return sum(getattr(share, what) for share in self._granted.values())

    def _add_load(self, share: Share, sign: float) -> None:
        for cpu in share.cpu_ids:
            if cpu in self._load:
                self._load[cpu] += sign * share.cpus / len(share.cpu_ids)


def _fits(resource: str, asked: int, free: int) -> None:
    if asked > free:
        raise _no_capacity(resource, asked, max(free, 0))


def _no_capacity(resource: str, asked: int, free: int) -> NoCapacity:
    return NoCapacity(
        f"{resource}: {format_size(asked)} were asked for, {format_size(free)} are free on this node",
        hint="ask for less, or delete sandboxes",
        details={"resource": resource, "free": free},
    )


def _pid_max() -> int:
    return int(Path("/proc/sys/kernel/pid_max").read_text())
