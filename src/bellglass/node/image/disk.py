"""A sandbox's disk: a sparse ext4 image, whose size and inode count are the sandbox's hard limits.

Nothing is written that a sparse file already says: inode tables and journal start as holes, so a new 10 GiB image takes
0.3 MiB and 5 ms. It must be mounted with `noinit_itable`, or the kernel fills the tables in the background.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

BLOCK_BYTES = 4096
MIN_SIZE_BYTES = 16 * 2**20
MAX_SIZE_BYTES = 16 * 2**40
MIN_INODES = 256
MAX_INODES = 2**31
MOUNT_OPTIONS = "discard,noinit_itable"
_MIN_JOURNAL_MIB, _MAX_JOURNAL_MIB = 4, 32


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


def create_sparse(image: Path, size_bytes: int) -> None:
    """An empty image, 0600. Raises FileExistsError: a disk is never made over another."""
    fd = os.open(image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size_bytes // BLOCK_BYTES * BLOCK_BYTES)
    finally:
        os.close(fd)
