"""What the helper changes of the whole host when it starts. Nothing of it is taken back: all sandboxes live on it."""

from __future__ import annotations

from pathlib import Path

from bellglass.node.helper import cgroup, kernel
from bellglass.node.helper.probe import PID_MAX

WANTED_PID_MAX = 4_194_304
FAVOR_DYNMODS = "favordynmods"
# Counts of the whole host, which one sandbox could use up for all: processes, open files, terminals. What each of
# them costs is charged to the sandbox's memory, so what the kernel derives from the host's may be passed. The limit of
# open files is what systemd sets.
_HOST_COUNTS = {
    PID_MAX: WANTED_PID_MAX,
    Path("/proc/sys/kernel/threads-max"): WANTED_PID_MAX,
    Path("/proc/sys/fs/file-max"): 2**63 - 1,
    Path("/proc/sys/kernel/pty/max"): 65536,
}


def raise_host_counts() -> dict[str, int]:
    """The kernel's own are too few for many sandboxes. Answers what they are now; never lowers one."""
    for file, wanted in _HOST_COUNTS.items():
        if int(file.read_text()) < wanted:
            file.write_text(str(wanted))
    return {str(file): int(file.read_text()) for file in _HOST_COUNTS}


def favor_dynmods() -> bool:
    """A process that moves to another cgroup, as each execution's first one does, waits for a grace period of RCU,
    unless the one before it moved just now: about 11 ms. With the mount option of this name (Linux 6.0) it never
    waits; forks and exits take a lock that is dearer for it. One hierarchy that has it is enough for all.

    Whether it had to be set. Raises OSError where the kernel does not know it."""
    target = str(cgroup.layout().unified)
    options = unified_options(Path("/proc/self/mountinfo").read_text(), target)
    if FAVOR_DYNMODS in options:
        return False
    kernel.set_options(target, [*options, FAVOR_DYNMODS])
    return True


def unified_options(mountinfo: str, target: str) -> list[str]:
    """The options of the cgroup2 file system mounted at `target`, as another reconfiguration has to repeat them."""
    for line in mountinfo.splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ")
        if mount.split()[4] == target and kind == "cgroup2":
            return [option for option in options.split(",") if option not in ("rw", "ro")]
    raise FileNotFoundError(f"{target}: no cgroup2 is mounted there")
