"""A host without room for what a file call writes, and no low-water mark that would refuse it before: only fsync tells.

What was answered with success is on the disk; all else is an error, and leaves no file behind.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import pytest

from bellglass.errors import BellglassError, DiskFull, NoCapacity
from tests.functional.full_disk import MIB, SmallDisk, small_disk

SHA_OF_DISK = """
import hashlib, os, sys
for name in sys.argv[1:]:
    descriptor = os.open(name, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # not from the page cache, which has every byte
    with open(descriptor, "rb") as file:
        print(name, hashlib.sha256(file.read()).hexdigest())
"""


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk]:
    with small_disk(**{"node.disk_low_water": 1}) as made:
        yield made


def test_a_write_that_the_host_can_not_keep_is_no_success(disk: SmallDisk) -> None:
    with disk.stack.sandbox(memory="256MiB", disk="256MiB", cpus=1, lifetime="15m") as box:
        kept: dict[str, str] = {}
        failed: dict[str, BellglassError] = {}
        disk.fill(leave=20 * MIB)
        for number in range(40):
            name, data = f"file{number}", os.urandom(MIB)
            try:
                box.files.write_bytes(name, data)
                kept[name] = hashlib.sha256(data).hexdigest()
            except BellglassError as error:
                failed[name] = error
        assert kept and failed, "the room was to be for some of them"
        for error in failed.values():
            assert isinstance(error, (DiskFull, NoCapacity)), error
        disk.empty()
        disk.wait_low(False)
        shown = box.exec(["python3", "-c", SHA_OF_DISK, *kept], timeout=60)
        assert dict(line.split() for line in shown.stdout.splitlines()) == kept, shown.stderr
        names = {entry.name for entry in box.files.list(".")}
        assert not names & set(failed) and not [name for name in names if name.startswith(".bellglass-")]
