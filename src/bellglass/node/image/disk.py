"""A sandbox's disk: a sparse ext4 image, whose size and inode count are the sandbox's hard limits.

Nothing is written that a sparse file already says: inode tables start as holes, so a new 10 GiB image takes 0.3 MiB
and its journal. It must be mounted with `noinit_itable`, or the kernel fills the tables in the background. mkfs takes
6 ms, so an empty image of each size asked for is kept and copied (0.6 ms; where the file system can, by reference).

The journal's room is taken from the host at once: ext4 gives up on a disk for good when its journal can't be written,
and one neighbour who fills the host's disk would do that to everybody.
"""

from __future__ import annotations

import errno
import os
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

BLOCK_BYTES = 4096
MIN_SIZE_BYTES = 16 * 2**20
MAX_SIZE_BYTES = 16 * 2**40
MIN_INODES = 256
MAX_INODES = 2**31
MOUNT_OPTIONS = "discard,noinit_itable"
MAX_BLANKS = 32
_FORMAT = 2
_DRAFT_S = 3600.0
_MIN_JOURNAL_MIB, _MAX_JOURNAL_MIB = 4, 16
_SUPERBLOCK_AT, _JOURNAL_BACKUP_AT = 1024, 0x10C
_EXTENT_HEADER, _EXTENT = struct.Struct("<HHHHI"), struct.Struct("<IHHI")
_EXTENT_MAGIC = 0xF30A


def journal_mib(size_bytes: int) -> int:
    """Size of the journal. It counts against the disk, so a small disk gets a small one: a 64th."""
    return max(_MIN_JOURNAL_MIB, min(_MAX_JOURNAL_MIB, size_bytes // 64 // 2**20))


def mkfs_argv(image: Path, size_bytes: int, inodes: int) -> Sequence[str]:
    """The count of inodes is rounded up by mkfs to whole blocks of inodes in each block group."""
    return (
        *("mkfs.ext4", "-q", "-F", "-b", str(BLOCK_BYTES), "-m", "0", "-N", str(inodes)),
        *("-O", "^resize_inode", "-J", f"size={journal_mib(size_bytes)}"),
        *("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"),
        *(str(image), f"{size_bytes // 1024}k"),
    )


def create(image: Path, size_bytes: int, inodes: int, blanks: Path, run: Callable[[Sequence[str]], object]) -> None:
    """A new image, 0600, owned by the caller. `blanks` is the folder of empty images, `run` starts mkfs.

    Raises FileExistsError: a disk is never made over another.
    """
    target = os.open(image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        blank = _open_blank(size_bytes, inodes, blanks, run)
        try:
            copy_sparse(blank, target)
            for offset, size in journal_extents(blank):
                os.posix_fallocate(target, offset, size)
        finally:
            os.close(blank)
    finally:
        os.close(target)


def journal_extents(image: int) -> list[tuple[int, int]]:
    """Offset and size in bytes of each piece of the journal: the superblock has a copy of the journal's inode."""
    root = os.pread(image, 60, _SUPERBLOCK_AT + _JOURNAL_BACKUP_AT)
    magic, count, _, depth, _ = _EXTENT_HEADER.unpack_from(root)
    if magic != _EXTENT_MAGIC or depth or not count:
        raise OSError(errno.EIO, "the empty disk image does not say where its journal is")
    found = []
    for number in range(count):
        _, blocks, high, low = _EXTENT.unpack_from(root, _EXTENT_HEADER.size + number * _EXTENT.size)
        found.append(((high << 32 | low) * BLOCK_BYTES, blocks * BLOCK_BYTES))
    return found


def copy_sparse(source: int, target: int) -> None:
    """Copy what is data, leave holes holes. Both are descriptors of regular files; the target is empty."""
    size, position = os.fstat(source).st_size, 0
    os.ftruncate(target, size)
    while position < size:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # only a hole is left
        end = os.lseek(source, position, os.SEEK_HOLE)
        while position < end:
            copied = _copy_range(source, target, end - position, position)
            if copied == 0:
                raise OSError(errno.EIO, "the empty disk image became shorter while it was copied")
            position += copied


def _copy_range(source: int, target: int, count: int, position: int) -> int:
    try:
        return os.copy_file_range(source, target, count, position, position)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP):
            raise
    # Two file systems: data folder and cache may lie on disks of their own.
    os.lseek(target, position, os.SEEK_SET)
    return os.sendfile(target, source, position, count)


def _open_blank(size_bytes: int, inodes: int, blanks: Path, run: Callable[[Sequence[str]], object]) -> int:
    size_bytes = size_bytes // BLOCK_BYTES * BLOCK_BYTES
    path = blanks / f"{size_bytes}-{inodes}-{_FORMAT}.ext4"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return _make_blank(path, size_bytes, inodes, run)
    os.utime(fd)  # how long since it was of use
    return fd


def _make_blank(path: Path, size_bytes: int, inodes: int, run: Callable[[Sequence[str]], object]) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _evict(path.parent)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size_bytes)
        run(mkfs_argv(draft, size_bytes, inodes))
        draft.replace(path)
    except BaseException:
        os.close(fd)
        draft.unlink(missing_ok=True)
        raise
    return fd


def _evict(blanks: Path) -> None:
    """Anybody who may create sandboxes chooses sizes, so the longest unused go."""
    ages: list[tuple[float, Path]] = []
    for path in blanks.glob("*.ext4"):
        with suppress(FileNotFoundError):
            ages.append((path.stat().st_mtime, path))
    for path in blanks.glob(".*.ext4.*"):  # left by a crash in the middle of mkfs
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _DRAFT_S:
                path.unlink()
    for _, path in sorted(ages, reverse=True)[MAX_BLANKS - 1 :]:
        path.unlink(missing_ok=True)
