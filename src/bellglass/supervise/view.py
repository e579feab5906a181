"""A daemon's view of the host when its code lies where its uid may not go.

Python, its packages and a checkout often lie below a home folder of mode 0700. The daemon then gets a mount namespace
of its own in which each folder that bars the way is covered by an empty one, with only the needed subtrees in it.
Nothing of the host changes, and the rest of that home is out of the daemon's sight.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import bellglass

CLONE_NEWNS = 0x00020000
MS_REC, MS_SLAVE, MS_NOSUID, MS_NODEV = 0x4000, 0x80000, 2, 4
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429  # the same numbers on x86_64 and aarch64
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, AT_RECURSIVE, AT_FDCWD = 1, os.O_CLOEXEC, 0x8000, -100
MOVE_MOUNT_F_EMPTY_PATH = 4


def code_paths() -> list[Path]:
    """The folders that a daemon of ours reads its program from: interpreter, venv, packages, checkout."""
    found = {Path(sys.prefix), Path(sys.base_prefix), Path(bellglass.__file__).resolve().parent}
    found |= {Path(entry) for entry in sys.path if entry and Path(entry).is_dir()}
    recipes = Path(bellglass.__file__).resolve().parents[2] / "templates"
    if recipes.is_dir():
        found.add(recipes)
    return sorted(path.resolve() for path in found)


def barriers(paths: Iterable[Path]) -> list[Path]:
    """The topmost folder on the way to each path that other users may not pass."""
    found = set()
    for path in paths:
        for folder in [*reversed(path.parents), path]:
            if not folder.stat().st_mode & 0o001:
                found.add(folder)
                break
    return sorted(found)


def enter(paths: Sequence[Path]) -> None:
    """Give this process (root, single-threaded) such a view of `paths`; nothing happens where nothing bars.

    Raises OSError."""
    if closed := [path for path in paths if path.stat().st_mode & 0o005 != 0o005]:
        raise PermissionError(f"{closed[0]} itself may not be read by the daemons' users: chmod -R o+rX {closed[0]}")
    covered = barriers(paths)
    if not covered:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    umask = os.umask(0o022)  # a daemon's own would close the folders between a barrier and a subtree
    # Slave: an unmount on the host still reaches this namespace, so that it pins nothing.
    _check(libc.mount(None, b"/", None, MS_REC | MS_SLAVE, None), "mount --make-rslave /")
    for barrier in covered:
        inside = [path for path in paths if barrier in path.parents]
        inside = [path for path in inside if not any(other in path.parents for other in inside)]
        trees = [(path, _open_tree(libc, path)) for path in inside]
        _check(
            libc.mount(b"none", os.fsencode(barrier), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=1m"),
            f"mount tmpfs on {barrier}",
        )
        for path, tree in trees:
            path.mkdir(parents=True, exist_ok=True, mode=0o755)
            result = libc.syscall(
                SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, ctypes.c_char_p(os.fsencode(path)), MOVE_MOUNT_F_EMPTY_PATH
            )
            _check(result, f"move_mount to {path}")
            os.close(tree)
    os.umask(umask)


def _open_tree(libc: ctypes.CDLL, path: Path) -> int:
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    tree = libc.syscall(SYS_OPEN_TREE, AT_FDCWD, ctypes.c_char_p(os.fsencode(path)), ctypes.c_uint(flags))
    _check(tree, f"open_tree {path}")
    return tree


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
