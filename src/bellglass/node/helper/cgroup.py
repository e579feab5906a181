"""The machine's cgroups: where they are, making them, handing one to the node, removing them with their parents.

Three layouts exist. Pure v2: one mount with all controllers. Hybrid: a hierarchy per v1 controller, and beside them a
unified mount without controllers, which still kills, freezes and tells when a group is empty. Plain v1 has no unified
mount and is not supported.

A machine's group is `bellglass-<installation>/<sandbox id>` in each hierarchy. Executions are its children in the
unified mount. On hybrid hosts the agent sits in the machine's group itself; on v2 a group with controllers for its
children may hold no process, so there the agent sits in `init.scope` below it, and the limits are on the group.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bellglass.errors import InternalError, NotSupported
from bellglass.node.helper.wait import until

INIT_SCOPE = "init.scope"
_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
_SOCKETS_PART = 8
_MAX_DEPTH = 1
_SPARE_GROUPS = 1024
# The most that the kernel takes, of v1 and of v2.
_UNBOUND = {"cpu.cfs_quota_us": "-1", "cpu.shares": "262144", "cpu.max": "max", "cpu.weight": "10000"}
_HANDED_OVER = ("cgroup.procs", "cgroup.kill", "cgroup.freeze", "cgroup.subtree_control")


@dataclass(frozen=True, slots=True)
class Layout:
    hierarchies: tuple[Path, ...]
    """Every mounted hierarchy, the unified one included."""
    unified: Path
    memory: Path
    """The hierarchy with the memory controller."""
    cpuacct: Path
    """The hierarchy that counts CPU time."""
    is_v2: bool

    def group(self, name: str) -> Path:
        """The machine's group in the unified mount; `name` as `group_name` gives it."""
        return self.unified / name


def group_name(installation: str, sandbox_id: str) -> str:
    return f"bellglass-{installation}/{sandbox_id}"


def parse_mounts(mounts: str) -> Layout:
    """The layout that these lines of /proc/self/mounts describe. Raises NotSupported for plain v1."""
    unified: list[Path] = []
    v1: list[Path] = []
    memory: Path | None = None
    cpuacct: Path | None = None
    for line in mounts.splitlines():
        _, target, kind, options, *_ = line.split()
        if kind == "cgroup2":
            unified.append(Path(target))
        elif kind == "cgroup":
            v1.append(Path(target))
            if "memory" in options.split(","):
                memory = Path(target)
            if "cpuacct" in options.split(","):
                cpuacct = Path(target)
    if not unified or (v1 and memory is None):
        raise NotSupported(
            "this host has no unified cgroup mount with a memory controller beside or in it",
            hint="boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 at /sys/fs/cgroup/unified",
        )
    return Layout((*v1, unified[0]), unified[0], memory or unified[0], cpuacct or unified[0], is_v2=not v1)


def layout() -> Layout:
    return parse_mounts(Path("/proc/self/mounts").read_text())


@dataclass(frozen=True, slots=True)
class Limits:
    """On v2 they belong to the machine's group, above the runtime's own. On hybrid hosts the runtime sets its own."""

    memory_bytes: int
    pids: int
    cpu_quota_us: int
    cpu_period_us: int
    cpu_list: str


def make(place: Layout, name: str, node_uid: int, node_gid: int, limits: Limits) -> None:
    """The machine's group in every hierarchy. The node gets the unified one: it makes the executions' groups, kills
    and freezes without asking. It does not get the limits."""
    for hierarchy in place.hierarchies:
        _make_group(hierarchy / name)
    group = place.group(name)
    if place.is_v2:
        for folder in (place.unified, group.parent, group):
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in _CONTROLLERS))
        for file, value in (
            ("memory.max", str(limits.memory_bytes)),
            ("memory.swap.max", "0"),
            ("pids.max", str(limits.pids)),
            ("cpu.max", f"{limits.cpu_quota_us} {limits.cpu_period_us}"),
            ("cpuset.cpus", limits.cpu_list),
        ):
            if file != "memory.swap.max" or (group / file).exists():  # absent where swap isn't accounted
                (group / file).write_text(value)
    else:
        # v1 has a count of its own for the buffers of TCP and UDP, which is off until it has a limit: they would be
        # the host's, and the host's TCP stops when all of its share is in use.
        sockets = place.memory / name / "memory.kmem.tcp.limit_in_bytes"
        if sockets.exists():
            sockets.write_text(str(limits.memory_bytes // _SOCKETS_PART))
    # What the node makes there root takes apart again: no tree that is too deep or too wide for that. A group of an
    # ended execution stays for as long as it has processes.
    (group / "cgroup.max.depth").write_text(str(_MAX_DEPTH))
    (group / "cgroup.max.descendants").write_text(str(limits.pids + _SPARE_GROUPS))
    for file in _HANDED_OVER:
        if (group / file).exists():
            os.chown(group / file, node_uid, node_gid)
    os.chown(group, node_uid, node_gid)


def kill(group: Path) -> None:
    """SIGKILL to all in the group and below; gone is success."""
    try:
        (group / "cgroup.kill").write_text("1")
    except (FileNotFoundError, OSError) as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def hasten_end(place: Layout, name: str) -> None:
    """Kill the machine, and let nothing hold its processes up any more: each takes CPU time to end, and a hundred of
    them with the share of one sandbox on a busy host take seconds. Gone is success."""
    kill(place.group(name))
    for hierarchy in place.hierarchies:
        for file, value in _UNBOUND.items():
            with suppress(FileNotFoundError, OSError):  # of another version of cgroups, or gone
                if (path := hierarchy / name / file).exists():
                    path.write_text(value)


def is_populated(group: Path) -> bool:
    return "populated 1" in _events(group)


def is_running_on(group: Path) -> bool:
    """Whether it has processes and is not frozen, told to or not."""
    events = _events(group)
    return "populated 1" in events and "frozen 0" in events


def _events(group: Path) -> list[str]:
    """Nothing of a group that is gone."""
    try:
        return (group / "cgroup.events").read_text().splitlines()
    except (FileNotFoundError, OSError) as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
        return []


def remove(place: Layout, name: str, deadline: float) -> None:
    """The machine's groups with all below, and the installation's where nothing else is in it. Gone is success."""
    for hierarchy in place.hierarchies:
        group = hierarchy / name
        # From below. What others remove meanwhile is no error: os.walk passes over it, where Path.rglob raises.
        for folder, _, _ in os.walk(group, topdown=False):
            _remove_group(Path(folder), deadline)
        try:
            group.parent.rmdir()
        except OSError as error:
            # Busy: another machine is there, or is just being made.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY):
                raise


def _make_group(group: Path) -> None:
    """mkdir with its parent. A removal of the last machine may take the parent away at any moment, so try again."""
    while True:
        try:
            group.mkdir(exist_ok=True)
        except FileNotFoundError:
            group.parent.mkdir(exist_ok=True)
        else:
            return


def _remove_group(group: Path, deadline: float) -> None:
    def gone() -> bool:
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            # v1 has no event for "the last process has really gone": dying ones still count for a moment.
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    if not until(gone, deadline):
        raise InternalError(f"{group} can't be removed: processes are in it")
