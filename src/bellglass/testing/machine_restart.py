"""A restart of the machine as an installation sees it: all that the kernel has of it is gone, its files are there.

What a kernel forgets is taken away by hand: processes, cgroups, mounts, loop devices, and what lies in /run. The boot
id is the kernel's own; the node reads another file for it, in the folder that only tests make. (Nothing can be mounted
over the kernel's: it lets no sandbox have a /proc of its own then.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from bellglass import faultpoints
from bellglass.datadir import DataDir
from bellglass.supervise.control import read_record
from bellglass.testing import kernel
from bellglass.testing.leaks import UID_RANGES, snapshot
from bellglass.testing.stack import Stack

GONE_S = 15.0


def restart_machine(stack: Stack) -> None:
    """The power goes; from now on the stack's commands run after the next boot. `stack.up()` starts it again."""
    lose_power(stack)
    planted = faultpoints.make_folder(stack.data_dir) / ".boot_id"
    planted.write_text(f"{uuid.uuid4()}\n")
    planted.chmod(0o644)


def lose_power(stack: Stack) -> None:
    """All that the kernel has of this installation goes, and nothing of others. Raises AssertionError if some stays."""
    scope, record = stack.scope, read_record(stack.data)
    for process in (record.processes if record is not None else {}).values():
        if process.alive():
            process.send(signal.SIGKILL)
    group = f"bellglass-{scope.installation}"
    places = [Path(mount.point) / group for mount in kernel.mounts() if mount.filesystem in ("cgroup", "cgroup2")]

    def cleared() -> bool:
        for place in places:
            for folder in _from_below(place):
                if (folder / "cgroup.kill").exists():
                    (folder / "cgroup.kill").write_text("1")
                try:
                    folder.rmdir()
                except OSError:
                    continue  # busy: its processes are on their way out
        return not any(place.exists() for place in places)

    _until(cleared, f"cgroups {group} stay")
    subprocess.run(["umount", "--lazy", str(stack.data.lxcfs_dir)], check=False, capture_output=True)
    unmount_gateways(stack.data)
    for table in kernel.nft_tables():
        if scope.installation in table:
            subprocess.run(["nft", "delete", "table", *table.split()], check=True)
    for lease in UID_RANGES.iterdir() if UID_RANGES.is_dir() else ():
        if str(lease.readlink()).startswith(f"{scope.installation}/"):
            lease.unlink()
    for kind in ("process", "mount", "loop device", "cgroup", "nft table", "uid range"):
        _until(lambda kind=kind: not snapshot(scope).items[kind], f"a {kind} stays")  # type: ignore[misc]


def unmount_gateways(data: DataDir) -> None:
    """Their files stay, as after a loss of power, and nothing is mounted on them."""
    for mount in sorted((mount.point for mount in kernel.mounts()), reverse=True):
        if Path(mount).is_relative_to(data.gateways_dir):
            subprocess.run(["umount", "--lazy", mount], check=True, capture_output=True)


def _from_below(place: Path) -> Iterable[Path]:
    return [Path(folder) for folder, _, _ in os.walk(place, topdown=False)]


def _until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + GONE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
