"""lxcfs began anew: what running machines have mounted from the dead one is replaced by the living one's files.

A file of a file system whose server is gone answers ENOTCONN for ever, `free` and `nproc` inside with it. So each
machine's mount namespace is entered, as its start has left it, and the same files are mounted once more. Root inside
has no capability to move mounts, and /proc is a mount itself, so the places are the ones that we made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bellglass import ids
from bellglass.errors import BellglassError, SandboxFailed
from bellglass.node.helper import cgroup, kernel, oci
from bellglass.node.helper.context import Context, locked

LOCK_S = 20.0


def renew_lxcfs(context: Context) -> Mapping[str, Any]:
    """Answers `renewed`, how many machines were seen to. Raises SandboxFailed naming those that could not be."""
    if not context.has_lxcfs:
        raise SandboxFailed("lxcfs is not mounted", hint="bellglass status")
    renewed, failed = 0, []
    host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for sandbox_id in _machines(context):
            try:
                with locked(context, sandbox_id, LOCK_S):
                    renewed += _renew(context, sandbox_id, host)
            except (OSError, BellglassError) as error:
                failed.append(f"{sandbox_id}: {error}")
    finally:
        os.close(host)
    if failed:
        raise SandboxFailed(f"/proc of {len(failed)} machines could not be renewed: {'; '.join(failed[:3])}")
    return {"renewed": renewed}


def _machines(context: Context) -> Iterator[str]:
    if context.data.sandboxes_dir.is_dir():
        names = [path.name for path in context.data.sandboxes_dir.iterdir()]
        yield from (name for name in names if ids.SANDBOX_ID.fullmatch(name))


def _renew(context: Context, sandbox_id: str, host: int) -> bool:
    """False: nothing of it runs."""
    namespace = _mount_namespace(context.group_name(sandbox_id))
    if namespace is None:
        return False
    with ExitStack() as owned:
        owned.callback(os.close, namespace)
        trees = {name: kernel.clone_tree(str(context.data.lxcfs_dir / name)) for name in oci.LXCFS_FILES}
        for tree in trees.values():
            owned.callback(os.close, tree)
            flags = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
            kernel.set_mount_attributes(tree, flags)
        owned.callback(kernel.setns, host, kernel.CLONE_NEWNS)
        kernel.setns(namespace, kernel.CLONE_NEWNS)
        for name, tree in trees.items():
            with suppress(OSError):  # then the new one lies over the old one
                kernel.detach(f"/{name}")
            kernel.attach_tree(tree, f"/{name}")
    return True


def _mount_namespace(group_name: str) -> int | None:
    """That of the machine's processes, looked up through its group: a pid alone may be another's by now."""
    group = cgroup.layout().group(group_name)
    for place in (group, group / cgroup.INIT_SCOPE):
        try:
            pids = (place / "cgroup.procs").read_text().split()
        except FileNotFoundError:
            continue
        for pid in pids:
            try:
                namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
                if f"/{group_name}" in Path(f"/proc/{pid}/cgroup").read_text():
                    return namespace
                os.close(namespace)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
    return None
