"""Idmapped mounts and the overlay above them: a disk that knows ids from 0 up serves a range of host uids.

Both layers are idmapped, the overlay is mounted plainly in the initial user namespace. What surprises: mounted by uid 0
such an overlay works but is silently read-only, since uid 0 has no place in the upper layer's map. So it
is mounted with the range's first uid as the file system uid.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

from bellglass.node.helper import kernel, launch
from bellglass.node.helper.uids import RANGE_SIZE


class Namespaces(NamedTuple):
    """Descriptors that keep them alive."""

    user: int
    net: int


def namespaces(first: int) -> Namespaces:
    """A user namespace which maps 0.. to first.., and a network namespace that it owns; nothing runs in them, and no
    other user namespace can be made below.

    The kernel counts inotify instances, message queues, locked memory and the like of a namespace against its owner's
    limits as well. Owned by root, all sandboxes and the host's root would share one count, so `first` owns it.
    """
    pid = launch.namespaces(first)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        raise OSError("unshare(CLONE_NEWUSER) failed: see user.max_user_namespaces and user.max_net_namespaces")
    try:
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {first} {RANGE_SIZE}")
        user = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        return Namespaces(user, os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def mount_idmapped(source: str, target: str, userns: int, *, read_only: bool) -> None:
    tree = kernel.clone_tree(source)
    try:
        attributes = kernel.MOUNT_ATTR_NODEV | (kernel.MOUNT_ATTR_RDONLY if read_only else 0)
        kernel.set_mount_attributes(tree, attributes, userns)
        kernel.attach_tree(tree, target)
    finally:
        os.close(tree)


def mount_overlay(lower: str, upper: str, work: str, target: str, first: int) -> None:
    """Raises OSError when it can't be mounted, or came out read-only. The caller is a process of one thread."""
    options = f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=nofollow,metacopy=off"
    parent = os.getppid()
    kernel.prctl(kernel.PR_SET_SECUREBITS, kernel.SECBIT_NO_SETUID_FIXUP)  # keeps the right to mount
    try:
        kernel.set_fs_ids(first, first)
        kernel.mount("overlay", target, "overlay", kernel.MS_NODEV, options)
    finally:
        kernel.set_fs_ids(0, 0)
        kernel.prctl(kernel.PR_SET_SECUREBITS, 0)
        kernel.die_with_parent(parent)  # a change of the ids has cleared it
    if not kernel.is_writable(target):
        raise OSError(f"the overlay at {target} was mounted read-only")
