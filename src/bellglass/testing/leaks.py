"""Whether an installation's sandboxes left anything behind.

A snapshot before, a snapshot after; what is in the second and not in the first is a leak: processes, mounts, loop
devices, cgroups with their parents, namespaces, network links, tables of nft, uid ranges, sockets, files, descriptors
of the daemons.
Only things of the installation in question are looked at, found by its id and its data folder, so that others on
the machine don't disturb. Namespaces carry no names: those of the installation's processes are told by their
inodes; for those that no process is in, the kernel's own count is taken, less the ones that foreign processes live
in. That count means something only while other installations on the host neither make nor end sandboxes.

    before = snapshot(Scope.of(data_dir))
    ...
    assert_no_leak(before)          # waits up to 5 s for what is still going away
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bellglass.datadir import DataDir
from bellglass.testing import kernel

KINDS = (
    "process",
    "mount",
    "loop device",
    "cgroup",
    "namespace",
    "kernel's namespaces",
    "kernel's late namespaces",
    "link",
    "nft table",
    "uid range",
    "socket",
    "file",
    "descriptor",
)
DAEMONS = (
    "bellglass.server",
    "bellglass.node.helper",
    "bellglass.node",
    "bellglass.egress.proxy",
    "bellglass.egress.resolver",
)
UID_BASE = 0x70000000
UID_RANGE_SIZE = 65536
SANDBOX_UIDS = range(UID_BASE, UID_BASE + 30_000 * UID_RANGE_SIZE)
UID_RANGES = Path("/run/bellglass/uids")
"""A symbolic link per lease, `<index>` to `<installation>/<sandbox id>`."""
POLL_S = 0.1
LATE = ("user", "uts")
"""Namespaces whose memory the kernel gives back in batches, up to this much later than the namespace itself:"""
LATE_S = 7.0
SURE_S = 1.0


class LeakFound(AssertionError):
    """Something was left behind; the message lists it, one line each."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One installation."""

    data_dir: Path
    installation: str

    @classmethod
    def of(cls, data_dir: Path) -> Scope:
        described = json.loads(DataDir(data_dir).installation_file.read_text())
        return cls(data_dir.resolve(), described["id"])

    def names(self, text: str) -> bool:
        """Whether a path or command is this installation's by its name."""
        return str(self.data_dir) in text or f"bellglass-{self.installation}" in text


@dataclass(frozen=True, slots=True)
class Resources:
    """What there was at one moment: for each kind how many of each thing."""

    scope: Scope
    items: Mapping[str, Counter[str]]
    others: frozenset[str] = frozenset()
    """The cgroups of other installations' sandboxes."""


def snapshot(scope: Scope) -> Resources:
    """Everything that belongs to the installation now. As an ordinary user without what only root may read."""
    everything = list(kernel.processes())
    ours = _processes(scope, everything)
    daemons: dict[str, int] = {}
    # The oldest of its name: the helper forks a child for each operation.
    for process in sorted(ours, key=lambda process: process.start_ticks):
        if name := _daemon_name(process):
            daemons.setdefault(name, process.pid)
    cgroups = list(kernel.cgroups())
    items = {
        "process": Counter(_process_name(process) for process in ours),
        "mount": _mounts(scope, daemons),
        "loop device": Counter(
            f"{device} of {backing}" for device, backing in kernel.loop_devices().items() if scope.names(backing)
        ),
        "cgroup": Counter(path for path in cgroups if scope.names(path)),
        **_namespaces(everything, ours),
        "link": Counter(kernel.links()),
        "nft table": Counter(name for name in kernel.nft_tables() if scope.installation in name),
        "uid range": Counter(_uid_ranges(scope)),
        "socket": Counter({path: n for path, n in kernel.unix_sockets().items() if scope.names(path)}),
        "file": Counter(_files(scope)),
        "descriptor": _descriptors(daemons),
    }
    return Resources(scope, items, frozenset(_foreign_sandboxes(scope, cgroups)))


def _foreign_sandboxes(scope: Scope, cgroups: list[str]) -> Iterator[str]:
    for path in cgroups:
        _, mark, rest = path.partition("/bellglass-")
        if mark and not scope.names(path):
            yield "/".join(rest.split("/")[:2])


def snapshot_of_nothing(scope: Scope) -> Resources:
    """What is to be left of an installation: nothing but what isn't its own, links and the kernel's namespaces."""
    now = snapshot(scope)
    owned = ("process", "mount", "loop device", "cgroup", "nft table", "uid range", "socket", "file", "descriptor")
    return Resources(scope, {kind: (type(found)() if kind in owned else found) for kind, found in now.items.items()})


def settled_snapshot(scope: Scope) -> Resources:
    """A snapshot without what the kernel has still to give back late: a count that holds it would hide a leak."""
    found = snapshot(scope)
    deadline = time.monotonic() + 3 * LATE_S
    calm_since = time.monotonic()
    while time.monotonic() < min(calm_since + LATE_S, deadline):
        time.sleep(5 * POLL_S)  # nothing tells when the kernel has freed its batches
        later = snapshot(scope)
        if later.items["kernel's late namespaces"] != found.items["kernel's late namespaces"]:
            calm_since = time.monotonic()
        found = later
    return found


def difference(before: Resources, after: Resources, *, late: bool = False) -> list[str]:
    """What is there after and wasn't before, one line each; empty if nothing. The kernel's count of user and uts
    namespaces is compared with `late` only."""
    lines = []
    for kind in KINDS:
        if kind.startswith("kernel's") and before.others != after.others:
            continue
        if kind == "kernel's late namespaces" and not late:
            continue
        for item, count in sorted((after.items[kind] - before.items[kind]).items()):
            had = before.items[kind][item]
            lines.append(f"{kind}: {item}" + (f" ({had} before, {had + count} now)" if had or count > 1 else ""))
    return lines


def assert_no_leak(before: Resources, *, deadline_s: float = 5.0, late: bool = False) -> None:
    """Raises LeakFound if something is still there after `deadline_s`, and still SURE_S later; with `late`, within
    LATE_S more, also by the kernel's count of user and uts namespaces."""
    deadline = time.monotonic() + deadline_s
    late_deadline = deadline + LATE_S
    suspects: list[str] = []
    sure_at = 0.0
    while left := difference(before, after := snapshot(before.scope), late=late):
        now_s = time.monotonic()
        if now_s >= (deadline if difference(before, after) else late_deadline):
            # What comes and goes, such as a worker of the helper, is no leak for having been met once.
            suspects = [line for line in suspects if line in left]
            if not suspects:
                suspects, sure_at = left, now_s + SURE_S
            elif now_s >= sure_at:
                raise LeakFound(f"left behind {deadline_s:g} s later:\n  " + "\n  ".join(suspects))
        if any(line.startswith("kernel's namespaces: net") for line in left):
            kernel.free_dead_net_namespaces()
        # No one event says that mounts, cgroups, namespaces and files are all gone.
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class HostNamespaces:
    """The namespaces of the whole host that no process lives in, by type. `others`: what may make such at any time."""

    counts: Mapping[str, int]
    others: frozenset[str]


def host_namespaces() -> HostNamespaces:
    """For before and after a whole test run, whose workers hide each other's single leaks from the kernel's count."""
    kernel.free_dead_net_namespaces()  # the one that this leaves is in every count, so on a fresh host too
    everything = list(kernel.processes())
    found = _namespaces(everything, [])
    sandboxes = {path.partition("/bellglass-")[2] for path in kernel.cgroups() if "/bellglass-" in path}
    helpers = {str(process.pid) for process in everything if _daemon_name(process) == "bellglass.node.helper"}
    return HostNamespaces(
        found["kernel's namespaces"] + found["kernel's late namespaces"], frozenset(sandboxes | helpers)
    )


def host_leaks(before: HostNamespaces, *, deadline_s: float = 5.0) -> list[str] | None:
    """What is more than before, one line each, once the kernel has had its time; None where other installations
    came or went meanwhile, so that a count says nothing."""
    deadline = time.monotonic() + deadline_s + LATE_S
    while True:
        after = host_namespaces()
        if after.others != before.others:
            return None
        more = {type: count - before.counts.get(type, 0) for type, count in after.counts.items()}
        left = [f"{type} namespaces: {count} more" for type, count in sorted(more.items()) if count > 0]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(5 * POLL_S)  # nothing tells when the kernel has freed its batches


def _processes(scope: Scope, everything: list[kernel.Process]) -> list[kernel.Process]:
    """The daemons, everything below them, everything in the installation's cgroups or under its uids.

    This process and its ancestors name the data folder too, in their arguments; they are not the installation's. Nor is
    what has died and waits for the host's init to collect it: whose it was can no longer be told.
    """
    everything = [process for process in everything if not (process.state == "Z" and process.parent == 1)]
    by_pid = {process.pid: process for process in everything}
    own, pid = set(), os.getpid()
    while pid in by_pid and pid not in own:
        own.add(pid)
        pid = by_pid[pid].parent
    foreign_ranges = _ranges_of_others(scope)
    verdicts: dict[int, bool] = {0: False}

    def is_ours(process: kernel.Process) -> bool:
        if process.pid not in verdicts:
            verdicts[process.pid] = False
            parent = by_pid.get(process.parent)
            verdicts[process.pid] = process.pid not in own and (
                scope.names(process.command)
                or scope.names(process.cgroups)
                or (process.uid in SANDBOX_UIDS and not any(process.uid in range_ for range_ in foreign_ranges))
                or (parent is not None and is_ours(parent))
            )
        return verdicts[process.pid]

    return [process for process in everything if is_ours(process)]


def _daemon_name(process: kernel.Process) -> str | None:
    for module in DAEMONS:
        if f"-m {module} " in process.command + " ":
            return module
    return None


def _process_name(process: kernel.Process) -> str:
    # A daemon that was restarted is the same daemon, while a second one of its kind is a leak.
    if name := _daemon_name(process):
        return name
    # Of its state only the end: a process that ran before and sleeps now is the same.
    dead = ", dead and not reaped" if process.state == "Z" else ""
    which = f"pid {process.pid}, started {process.start_ticks}, uid {process.uid}{dead}"
    return f"{process.command[:120]} ({which})"


def _mounts(scope: Scope, daemons: Mapping[str, int]) -> Counter[str]:
    found = Counter(str(mount) for mount in kernel.mounts() if scope.names(str(mount)))
    own = kernel.namespaces_of(os.getpid()).get("mnt")
    for name, pid in daemons.items():
        if kernel.namespaces_of(pid).get("mnt") not in (own, None):
            found.update(f"{mount} (seen by {name})" for mount in kernel.mounts(pid))
    return found


def _namespaces(everything: list[kernel.Process], ours: list[kernel.Process]) -> dict[str, Counter[str]]:
    our_pids = {process.pid for process in ours}
    foreign: dict[str, set[int]] = {type: set() for type in kernel.NAMESPACE_TYPES}
    mine: dict[str, set[int]] = {type: set() for type in kernel.NAMESPACE_TYPES}
    for process in everything:
        for type, inode in kernel.namespaces_of(process.pid).items():
            (mine if process.pid in our_pids else foreign)[type].add(inode)
    seen = Counter(f"{type}:[{inode}]" for type in kernel.NAMESPACE_TYPES for inode in mine[type] - foreign[type])
    counted: Counter[str] = Counter()
    late: Counter[str] = Counter()
    if os.geteuid() == 0:
        # Networks that another test made are held by descriptors, and no process need be in them.
        others = (process.pid for process in everything if process.pid not in our_pids | {os.getpid()})
        held: dict[str, set[int]] = {type: set() for type in kernel.NAMESPACE_TYPES}
        for pid in others:
            for type, inode in kernel.held_namespaces(pid):
                held[type].add(inode)
        for type, count in kernel.namespace_counts().items():
            elsewhere = foreign[type] | (held[type] - mine[type])
            (late if type in LATE else counted)[type] = max(count - len(elsewhere) + 1, 0)
        hidden = (kernel.mount_namespaces() or set()) - foreign["mnt"] - held["mnt"]
        counted.update(f"mnt:[{inode}]" for inode in hidden)
    return {"namespace": seen, "kernel's namespaces": counted, "kernel's late namespaces": late}


def _uid_ranges(scope: Scope) -> Iterator[str]:
    for index, installation, sandbox in leases():
        if installation == scope.installation:
            yield f"{index} of {sandbox}"


def _ranges_of_others(scope: Scope) -> list[range]:
    found = []
    for index, installation, _ in leases():
        if installation != scope.installation:
            first = UID_BASE + index * UID_RANGE_SIZE
            found.append(range(first, first + UID_RANGE_SIZE))
    return found


def leases() -> Iterator[tuple[int, str, str]]:
    """Index, installation and sandbox of every leased uid range of the host."""
    if not UID_RANGES.is_dir():
        return
    for path in UID_RANGES.iterdir():
        try:
            installation, _, sandbox = str(path.readlink()).partition("/")
        except FileNotFoundError:
            continue
        yield int(path.name), installation, sandbox


def _files(scope: Scope) -> Iterator[str]:
    data = DataDir(scope.data_dir)
    for folder in (data.sandboxes_dir, data.inputs_dir, data.run_dir):
        yield from _below(folder, depth=2)
    # The executions of a sandbox that lives stay readable; what counts is that the sandbox's folder goes with it.
    yield from _below(data.executions_dir, depth=1)


def _below(folder: Path, depth: int) -> Iterator[str]:
    try:
        names = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for path in names:
        yield str(path)
        if depth > 1 and path.is_dir() and not path.is_symlink():
            yield from _below(path, depth - 1)


def _descriptors(daemons: Mapping[str, int]) -> Counter[str]:
    """By daemon and kind. Left out are what others decide: connections that a client keeps open, and database files,
    which are opened by need up to the pool's size."""
    found: Counter[str] = Counter()
    connections = kernel.tcp_connections() if daemons else set()
    for name, pid in daemons.items():
        for target, count in kernel.descriptors(pid, connections).items():
            if target != "tcp connection" and ".db" not in Path(target).suffix:
                found[f"{target} in {name}"] += count
    return found
