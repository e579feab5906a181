"""What is read beyond the cache limit of a request does not stay in the page cache; the rest does."""

from __future__ import annotations

import io
import mmap
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellglass.testing.page_cache import cached_bytes
from bellglass.testing.stack import PARENT_DIR
from bellglass.wire.guest import FileOp

from .conftest import Peer

MIB = 1 << 20
SIZE = 24 * MIB + 4321
"""More than two windows of 8 MiB and what a pipe holds, and not in whole pages."""


def is_cached(path: Path) -> bool:
    """Most of it; a machine that is short of memory, or of another mind about a few pages, may differ there."""
    return cached_bytes(path) > path.stat().st_size // 2


@pytest.fixture
def disk() -> Iterator[Path]:
    """On a disk: what is in memory alone is nothing else's cache."""
    with tempfile.TemporaryDirectory(prefix="bellglass-test-", dir=PARENT_DIR) as folder:
        yield Path(folder)


def durable(path: Path, size: int) -> bytes:
    """A file whose pages the kernel may let go of."""
    data = os.urandom(size)
    with open(path, "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    return data


def test_a_file_over_the_limit_leaves_nothing_and_others_all(peer: Peer, disk: Path) -> None:
    data = durable(disk / "f", SIZE)
    for limit in (None, SIZE):
        assert peer.file(FileOp.READ, str(disk / "f"), cache_bytes=limit).stdout == data
        assert is_cached(disk / "f")
    for limit in (SIZE - 1, 0):
        assert peer.file(FileOp.READ, str(disk / "f"), cache_bytes=limit).stdout == data
        assert cached_bytes(disk / "f") < MIB


def test_of_a_range_its_own_bytes_count(peer: Peer, disk: Path) -> None:
    data = durable(disk / "f", SIZE)
    first, length = 4 * MIB + 100, 12 * MIB

    def read(limit: int, length: int | None = length) -> bytes:
        return peer.file(FileOp.READ, str(disk / "f"), offset=first, length=length, cache_bytes=limit).stdout

    assert read(length) == data[first : first + length] and cached_bytes(disk / "f") > SIZE - MIB
    assert read(SIZE - first, 1 << 40) == data[first:] and cached_bytes(disk / "f") > SIZE - MIB, "no more is there"
    assert read(length - 1) == data[first : first + length]
    left = cached_bytes(disk / "f")
    # A large folio at either end stays as a whole, since others' bytes lie in it.
    assert SIZE - length - MIB < left < SIZE - length + 5 * MIB


def test_pages_that_cannot_go_harm_nothing(peer: Peer, disk: Path) -> None:
    """A program has them mapped and dirty."""
    data = durable(disk / "f", SIZE)
    with open(disk / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        for at in range(0, SIZE, mmap.PAGESIZE):
            mapped[at] = data[at]
        assert peer.file(FileOp.READ, str(disk / "f"), cache_bytes=0).stdout == data
        assert is_cached(disk / "f")
    assert peer.file(FileOp.READ, "/proc/self/status", cache_bytes=0).stdout.startswith(b"Name:")
    (disk / "empty").touch()
    assert peer.file(FileOp.READ, str(disk / "empty"), cache_bytes=0).stdout == b""


def test_a_tree_stays_where_it_is(peer: Peer, disk: Path) -> None:
    """Its files may be a template's, which the page cache has for all sandboxes of the host."""
    sizes = (SIZE, 3 * MIB, 300_000, 4321)
    contents = {f"f{number}": durable(disk / f"f{number}", size) for number, size in enumerate(sizes)}
    done = peer.file(FileOp.ARCHIVE_OUT, str(disk), cache_bytes=0)
    assert done.result is not None, done.failure
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        for name, data in contents.items():
            file = tar.extractfile(next(member for member in tar.getmembers() if member.name.endswith(name)))
            assert file is not None and file.read() == data
            assert is_cached(disk / name)
