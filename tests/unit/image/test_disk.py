"""Empty disk images: sparse, copied hole by hole, kept up to a number."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from bellglass.node.image import disk

MIB = 2**20
calls: list[Sequence[str]] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def mkfs(argv: Sequence[str]) -> None:
    calls.append(argv)
    path = shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert path is not None
    subprocess.run([path, *argv[1:]], check=True)


def make(tmp_path: Path, name: str, size: int = 64 * MIB, inodes: int = 1024) -> Path:
    image = tmp_path / name
    disk.create(image, size, inodes, tmp_path / "blanks", mkfs)
    return image


def test_a_new_image_is_sparse_whole_and_private(tmp_path: Path) -> None:
    image = make(tmp_path, "a")
    status = image.stat()
    assert status.st_size == 64 * MIB
    assert status.st_blocks * 512 < 2 * MIB + disk.journal_mib(64 * MIB) * MIB
    assert status.st_mode & 0o777 == 0o600
    checked = subprocess.run(["/usr/sbin/e2fsck", "-f", "-n", str(image)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    told = subprocess.run(["/usr/sbin/dumpe2fs", "-h", str(image)], capture_output=True, text=True).stdout
    facts = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    assert facts["Inode count"].strip() == "1024"
    assert facts["Reserved block count"].strip() == "0"


@pytest.mark.parametrize("size", [16 * MIB, 64 * MIB, 2**30, 10 * 2**30])
def test_the_journal_has_its_room_at_once(tmp_path: Path, size: int) -> None:
    """A journal that can't be written is the end of a disk, whoever filled the host's."""
    image = make(tmp_path, "a", size=size)
    descriptor = os.open(image, os.O_RDONLY)
    try:
        extents = disk.journal_extents(descriptor)
        told = subprocess.run(["/usr/sbin/debugfs", "-R", "stat <8>", str(image)], capture_output=True, text=True)
        pieces = re.findall(r"\(\d+(?:-\d+)?\):(\d+)(?:-(\d+))?", told.stdout.partition("EXTENTS:")[2])
        assert pieces, told.stdout
        assert extents == [(int(a) * 4096, (int(b or a) - int(a) + 1) * 4096) for a, b in pieces]
        assert sum(length for _, length in extents) == disk.journal_mib(size) * MIB
        assert image.stat().st_blocks * 512 >= disk.journal_mib(size) * MIB
    finally:
        os.close(descriptor)


def test_mkfs_runs_once_per_size(tmp_path: Path) -> None:
    first, second = make(tmp_path, "a"), make(tmp_path, "b")
    assert len(calls) == 1
    assert first.read_bytes() == second.read_bytes()
    make(tmp_path, "c", inodes=2048)
    make(tmp_path, "d", size=65 * MIB)
    assert len(calls) == 3


def test_a_disk_is_never_made_over_another(tmp_path: Path) -> None:
    image = make(tmp_path, "a")
    image.write_bytes(b"somebody's data")
    with pytest.raises(FileExistsError):
        make(tmp_path, "a")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        make(tmp_path, "link")
    assert image.read_bytes() == b"somebody's data"


def test_a_failed_mkfs_leaves_no_blank(tmp_path: Path) -> None:
    def fail(argv: Sequence[str]) -> None:
        raise RuntimeError("mkfs failed")

    with pytest.raises(RuntimeError):
        disk.create(tmp_path / "a", 64 * MIB, 1024, tmp_path / "blanks", fail)
    assert list((tmp_path / "blanks").iterdir()) == []


def test_old_blanks_go(tmp_path: Path) -> None:
    blanks = tmp_path / "blanks"
    blanks.mkdir()
    for number in range(disk.MAX_BLANKS + 5):
        (blanks / f"{number}.ext4").touch()
        os.utime(blanks / f"{number}.ext4", (number, number))
    crashed = blanks / ".1-1-1.ext4.abc"
    crashed.touch()
    os.utime(crashed, (1, 1))
    make(tmp_path, "a")
    kept = sorted(path.name for path in blanks.iterdir())
    assert len(kept) == disk.MAX_BLANKS
    assert "0.ext4" not in kept and "36.ext4" in kept and crashed.name not in kept


def test_copies_keep_holes_and_bytes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with open(source, "wb") as file:
        file.truncate(8 * MIB)
        for offset in (0, 3 * MIB + 5, 8 * MIB - 1):
            file.seek(offset)
            file.write(b"x")
    with open(source, "rb") as read, open(tmp_path / "copy", "wb") as write:
        disk.copy_sparse(read.fileno(), write.fileno())
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert (tmp_path / "copy").stat().st_blocks * 512 < MIB


def test_a_blank_of_another_file_system_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel copies within one file system only; there is not always a second one to try it with."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    first = make(tmp_path, "a")
    monkeypatch.setattr(os, "copy_file_range", refuse)
    second = make(tmp_path, "b")
    assert first.read_bytes() == second.read_bytes()
    assert second.stat().st_blocks * 512 < 2 * MIB + disk.journal_mib(64 * MIB) * MIB


@pytest.mark.parametrize(("size_mib", "journal"), [(16, 4), (256, 4), (1024, 16), (10240, 16), (10**6, 16)])
def test_journal(size_mib: int, journal: int) -> None:
    assert disk.journal_mib(size_mib * MIB) == journal


def test_argv_is_only_numbers_and_our_path() -> None:
    argv = disk.mkfs_argv(Path("/x/disk.img"), 10 * 2**30, 655360)
    assert argv[0] == "mkfs.ext4" and argv[-2:] == ("/x/disk.img", "10485760k")
    assert argv[argv.index("-N") + 1] == "655360"
