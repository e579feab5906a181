"""Giving back everything a machine had. Finds things by their names, never by memory, so it is right after a crash at
any point of a start or of an earlier reclaim, and for machines that never were.

The mounts are not here: they live in the machine's mount namespace and go with its last process, and the loop
device with them. The runtime is not asked either: its state folder may be half-written, and what it knows is here.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from bellglass import faultpoints
from bellglass.errors import InternalError
from bellglass.node.helper import cgroup, loop, uids
from bellglass.node.helper.context import DISK, MACHINE, Context, locked
from bellglass.node.helper.net import gateway
from bellglass.node.helper.wait import until

TIMEOUT_S = 15.0


def reclaim_machine(
    context: Context, sandbox_id: str, *, keep_disk: bool = False, timeout_s: float = TIMEOUT_S
) -> bool:
    """Whether a disk is left, which only `keep_disk` can do. Idempotent. Raises InternalError, naming what is left,
    when something does not go in time: ask again later."""
    with locked(context, sandbox_id, timeout_s):
        return reclaim_locked(context, sandbox_id, keep_disk=keep_disk, timeout_s=timeout_s)


def reclaim_locked(context: Context, sandbox_id: str, *, keep_disk: bool = False, timeout_s: float = TIMEOUT_S) -> bool:
    deadline = time.monotonic() + timeout_s
    place = cgroup.layout()
    name = context.group_name(sandbox_id)
    cgroup.kill(place.group(name))
    if not until(lambda: not cgroup.is_populated(place.group(name)), deadline):
        raise InternalError(f"processes of {sandbox_id} are still alive {timeout_s:g} s after SIGKILL")
    faultpoints.reach("helper.reclaim.killed")
    gateway.remove(context.data, sandbox_id, deadline)
    faultpoints.reach("helper.reclaim.gateway_removed")
    cgroup.remove(place, name, deadline)
    faultpoints.reach("helper.reclaim.cgroups_removed")
    _remove_tree(context.data.runc_root / sandbox_id)
    faultpoints.reach("helper.reclaim.runtime_removed")
    folder = context.data.sandbox_dir(sandbox_id)
    # A mount namespace is torn down a little after its last process: the kernel tells nobody when.
    devices = loop.devices_below(folder)
    if not until(lambda: not loop.devices_below(folder, devices), deadline):
        raise InternalError(f"{devices} still hold the disk of {sandbox_id} after {timeout_s:g} s")
    faultpoints.reach("helper.reclaim.devices_gone")
    kept = keep_disk and (folder / DISK).is_file()
    if kept:
        folder.chmod(0o700)
        for path in folder.iterdir():
            if path.name not in (DISK, MACHINE):
                _remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    else:
        _remove_tree(folder)
    faultpoints.reach("helper.reclaim.folder_removed")
    uids.release(context.installation, sandbox_id, deadline)
    faultpoints.reach("helper.reclaim.uids_released")
    return kept


def _remove_tree(folder: Path) -> None:
    while folder.exists():
        with suppress(FileNotFoundError):  # a dying runtime removes its own: what is left is looked at again
            shutil.rmtree(folder)
