"""Whether a sandbox fits on this host, and which CPUs it gets.

Each limit counts in full from the moment its create is accepted until its sandbox is reclaimed, against what the host
has beyond a reserve, times an overcommit factor: idle sandboxes use far less than their limits. A disk is on a par with
what its sandbox's logs may take on the host. Refusals say which resource, how much was asked for and how much is free.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bellglass.errors import InvalidRequest, NoCapacity
from bellglass.model import SandboxSpec
from bellglass.node.executions import budget
from bellglass.units import format_size

RESOURCES = ("cpu", "memory", "disk", "pids")
_STEPS = {
    "cpu": "node.cpu_overcommit",
    "memory": "node.memory_overcommit",
    "disk": "node.disk_overcommit or free some of the host's disk",
    "pids": "node.pids_overcommit or the host's kernel.pid_max",
}


@dataclass(frozen=True, slots=True)
class Share:
    """What one sandbox was granted. `disk` has its logs in it."""

    cpu_ids: tuple[int, ...]
    cpu: float
    memory: int
    disk: int
    pids: int


class Admission:
    """The sum of what was granted. `data_dir` lies on the disk that holds the sandboxes' disks."""

    def __init__(self, settings: Mapping[str, Any], data_dir: Path) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._host_cpus = sorted(os.sched_getaffinity(0))
        self._load = dict.fromkeys(self._host_cpus, 0.0)
        self._granted: dict[str, Share] = {}
        self._logs = budget.most_bytes(settings["node.log_limit"], settings["node.max_executions"])
        self.memory_total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def most_cpus(self) -> float:
        return min(float(self._settings["node.max_cpus"]), float(len(self._host_cpus)))

    def grant(self, sandbox_id: str, spec: SandboxSpec, *, cpu_ids: tuple[int, ...] | None = None) -> Share:
        """Reserve, or raise NoCapacity (details: resource, asked, free) or InvalidRequest (cpus). `cpu_ids` is given
        for a machine that was granted before: it is counted, whatever fits. A second call for the same id answers the
        first's share."""
        if sandbox_id in self._granted:
            return self._granted[sandbox_id]
        share = Share((), spec.cpus, spec.memory_bytes, spec.disk_bytes + self._logs, spec.pids)
        if cpu_ids is None:
            if spec.cpus > self.most_cpus():
                raise InvalidRequest(
                    f"cpus: {spec.cpus:g} is more than this node gives to one sandbox",
                    hint=f"the most is {self.most_cpus():g}",
                    details={"field": "cpus", "most": self.most_cpus()},
                )
            self._check(share)
            cpu_ids = self._idlest(spec.cpus)
        return self._add(sandbox_id, replace(share, cpu_ids=cpu_ids))

    def granted(self, sandbox_id: str) -> Share | None:
        return self._granted.get(sandbox_id)

    def keep_disk(self, sandbox_id: str, disk_bytes: int) -> None:
        """All is given back but the disk, until `give_back`."""
        self.give_back(sandbox_id)
        self._granted[sandbox_id] = Share((), 0.0, 0, disk_bytes, 0)

    def grant_reader(self, sandbox_id: str, *, cpus: float, memory_bytes: int, pids: int) -> Share:
        """A machine on a disk that is kept and counted already, until `keep_disk` or `give_back`. Raises NoCapacity."""
        machine = Share((), min(cpus, self.most_cpus()), memory_bytes, 0, pids)
        self._check(machine)
        disk = self._granted[sandbox_id].disk
        return self._add(sandbox_id, replace(machine, cpu_ids=self._idlest(machine.cpu), disk=disk))

    def give_back(self, sandbox_id: str) -> None:
        """Safe to repeat."""
        if (share := self._granted.pop(sandbox_id, None)) is not None:
            self._add_load(share, -1.0)

    def report(self) -> dict[str, Any]:
        """The `capacity` of `node.info`. `resources` has for each of them what the host has (`total`), the settings
        `reserve` and `overcommit`, and what is promised (`committed`) and can still be (`free`): CPUs, bytes, pids."""
        resources = {}
        for name in RESOURCES:
            reserve, overcommit = self._reserve(name), self._settings[f"node.{name}_overcommit"]
            resources[name] = {
                "total": self._total(name),
                "reserve": reserve,
                "overcommit": overcommit,
                "committed": self._committed(name),
                "free": self._free(name),
            }
        return {
            "cpus": len(self._host_cpus),
            "memory_bytes": self.memory_total_bytes,
            "disk_bytes": shutil.disk_usage(self._data_dir).total,
            "disk_free_bytes": self._disk_free(),
            "sandboxes": len(self._granted),
            "memory_committed_bytes": self._committed("memory"),
            "disk_committed_bytes": self._committed("disk"),
            "resources": resources,
        }

    # --- inside -----------------------------------------------------------------------------------------

    def _add(self, sandbox_id: str, share: Share) -> Share:
        self._granted[sandbox_id] = share
        self._add_load(share, 1.0)
        return share

    def _idlest(self, cpus: float) -> tuple[int, ...]:
        count = max(math.ceil(cpus), 1)
        return tuple(sorted(sorted(self._host_cpus, key=lambda cpu: (self._load[cpu], cpu))[:count]))

    def _check(self, share: Share) -> None:
        for name in RESOURCES:
            asked, free = getattr(share, name), self._free(name)
            if name == "memory":  # one that the host does not have would only ever be killed for it
                free = min(free, max(self.memory_total_bytes - self._reserve(name), 0))
            if asked > free:
                raise _no_capacity(name, asked, free, logs=self._logs)

    def _free(self, name: str) -> float:
        """What can still be promised; at the worst 0."""
        has = self._disk_free() if name == "disk" else self._total(name)
        most = max(has - self._reserve(name), 0) * self._settings[f"node.{name}_overcommit"]
        free = max(most - self._committed(name), 0)
        return round(free, 3) if name == "cpu" else int(free)

    def _total(self, name: str) -> int:
        match name:
            case "cpu":
                return len(self._host_cpus)
            case "memory":
                return self.memory_total_bytes
            case "disk":
                return shutil.disk_usage(self._data_dir).total
            case _:
                return _pid_max()

    def _reserve(self, name: str) -> Any:
        return self._settings[f"node.{name}_reserve"]

    def _disk_free(self) -> int:
        return shutil.disk_usage(self._data_dir).free

    def _committed(self, name: str) -> Any:
        return sum(getattr(share, name) for share in self._granted.values())

    def _add_load(self, share: Share, sign: float) -> None:
        for cpu in share.cpu_ids:
            if cpu in self._load:
                self._load[cpu] += sign * share.cpu / len(share.cpu_ids)


def _no_capacity(name: str, asked: float, free: float, *, logs: int) -> NoCapacity:
    sizes = name in ("memory", "disk")
    shown_asked, shown_free = (format_size(int(n)) if sizes else f"{n:g}" for n in (asked, free))
    with_logs = f" (with {format_size(logs)} for its logs)" if name == "disk" else ""
    return NoCapacity(
        f"{name}: {shown_asked}{with_logs} were asked for, {shown_free} are free on this node",
        hint=f"ask for less, delete sandboxes, or let the operator raise {_STEPS[name]}",
        details={"resource": name, "asked": asked, "free": free},
    )


def _pid_max() -> int:
    return int(Path("/proc/sys/kernel/pid_max").read_text())
