"""The system calls that Python 3.11 does not have: mount(2) and its newer relatives, unshare, setns, prctl.

Every function raises OSError with the errno. Call unshare and setns in a forked child only: they change the caller.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOATIME = 1024
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
MOUNT_ATTR_IDMAP = 0x00100000

PR_SET_PDEATHSIG = 1
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
SECBIT_NO_SETUID_FIXUP = 1 << 2

_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
# The same numbers on x86_64 and aarch64.
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_FSCONFIG, _SYS_FSPICK, _SYS_MOUNT_SETATTR = 428, 429, 431, 433, 442
_FSPICK_CLOEXEC, _FSCONFIG_SET_FLAG, _FSCONFIG_CMD_RECONFIGURE = 1, 0, 7

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.unshare.argtypes = [ctypes.c_int]
_libc.setns.argtypes = [ctypes.c_int, ctypes.c_int]
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.setfsuid.argtypes = [ctypes.c_uint]
_libc.setfsgid.argtypes = [ctypes.c_uint]
_libc.syscall.restype = ctypes.c_long


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, flags: int) -> None:
    _check(_libc.setns(fd, flags), f"setns({flags:#x})")


def prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl({option}, {value})")


def die_with_parent(parent: int) -> None:
    """SIGKILL to this process when `parent`, which forked it, ends; at once where it has ended already: the kernel
    sends the signal only for a death after the call. A later change of uid or fsuid clears it."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def set_fs_ids(uid: int, gid: int) -> None:
    """The ids that the file system checks use. The kernel never reports failure here, so ask again by an invalid id."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    got = (_libc.setfsuid(0xFFFFFFFF) & 0xFFFFFFFF, _libc.setfsgid(0xFFFFFFFF) & 0xFFFFFFFF)
    if got != (uid, gid):
        raise PermissionError(f"setfsuid/setfsgid: asked for {uid}, {gid}, have {got[0]}, {got[1]}")


def mount(source: str, target: str, fs_type: str, flags: int, data: str = "") -> None:
    _check(
        _libc.mount(source.encode(), target.encode(), fs_type.encode(), flags, data.encode()),
        f"mount -t {fs_type or 'none'} {source} {target}",
    )


def detach(target: str) -> None:
    """umount2 with MNT_DETACH: also of a file system whose server is dead."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount --lazy {target}")


def clone_tree(source: str | int) -> int:
    """A detached copy of one mount (open_tree): of a path, or of what a descriptor shows. Answers its descriptor."""
    fd, path = (source, b"") if isinstance(source, int) else (_AT_FDCWD, source.encode())
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_EMPTY_PATH if isinstance(source, int) else 0)
    result = _libc.syscall(ctypes.c_long(_SYS_OPEN_TREE), ctypes.c_long(fd), path, ctypes.c_ulong(flags))
    return _check(result, f"open_tree({source})")


def set_mount_attributes(tree: int, attributes: int, userns: int | None = None) -> None:
    """mount_setattr of a detached mount. With `userns` it becomes idmapped by that user namespace's maps."""
    if userns is not None:
        attributes |= MOUNT_ATTR_IDMAP
    attr = _MountAttr(attributes, 0, 0, userns or 0)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_long(tree),
        b"",
        ctypes.c_ulong(_AT_EMPTY_PATH),
        ctypes.byref(attr),
        ctypes.c_size_t(ctypes.sizeof(attr)),
    )
    _check(result, f"mount_setattr({attributes:#x})")


def attach_tree(tree: int, target: str) -> None:
    """move_mount: a detached mount gets its place. The caller still owns the descriptor."""
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOVE_MOUNT),
        ctypes.c_long(tree),
        b"",
        ctypes.c_long(_AT_FDCWD),
        target.encode(),
        ctypes.c_ulong(_MOVE_MOUNT_F_EMPTY_PATH),
    )
    _check(result, f"move_mount({target})")


def set_options(target: str, options: Iterable[str]) -> None:
    """The file system mounted here gets these options, each without a value, and none beside them; what belongs to the
    mount alone (nosuid, ...) stays."""
    picked = _libc.syscall(
        ctypes.c_long(_SYS_FSPICK), ctypes.c_long(_AT_FDCWD), target.encode(), ctypes.c_ulong(_FSPICK_CLOEXEC)
    )
    fd = _check(picked, f"fspick({target})")
    try:
        for option in options:
            _fsconfig(fd, _FSCONFIG_SET_FLAG, option)
        _fsconfig(fd, _FSCONFIG_CMD_RECONFIGURE, None)
    finally:
        os.close(fd)


def _fsconfig(fd: int, command: int, key: str | None) -> None:
    result = _libc.syscall(
        ctypes.c_long(_SYS_FSCONFIG),
        ctypes.c_long(fd),
        ctypes.c_ulong(command),
        key.encode() if key is not None else None,
        None,
        ctypes.c_long(0),
    )
    _check(result, f"fsconfig({command}, {key})")


def is_writable(target: str) -> bool:
    """Whether the mount at this path and its file system are both writable, by /proc/self/mountinfo."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == target:
            return "rw" in fields[5].split(",") and "rw" in fields[-1].split(",")
    raise FileNotFoundError(f"{target}: nothing is mounted there")


def is_mount(target: str) -> bool:
    """Whether something is mounted at exactly this path, by /proc/self/mountinfo."""
    return any(line.split()[4] == target for line in Path("/proc/self/mountinfo").read_text().splitlines())
