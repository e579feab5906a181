"""An installation whose data folder lies on a small disk of its own, which a test can fill."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bellglass.ballast import FILE_NAME, SIZE_BYTES
from bellglass.node.flushing import RESERVE_BYTES, RESERVE_NAME
from bellglass.supervise import control
from bellglass.testing.stack import PARENT_DIR, Stack
from tests.functional.own import own_installation
from tests.functional.waiting import wait_until

MIB = 2**20
DISK_BYTES = 640 * MIB
MARK_BYTES = 64 * MIB
SETTINGS = {
    "node.disk_low_water": MARK_BYTES,
    "node.disk_reserve": 16 * MIB,
    "node.disk_overcommit": 1000.0,
    "node.log_limit": MIB,
}


class SmallDisk:
    """`stack` runs on it."""

    def __init__(self, mount: Path, stack: Stack) -> None:
        self.mount = mount
        self.stack = stack
        self._filler = mount / "filler"

    def free(self) -> int:
        found = os.statvfs(self.mount)
        return found.f_bavail * found.f_frsize

    def given_up(self) -> int:
        """The bytes of their ballasts that the daemons have spent."""
        node, server = self.stack.data.node_dir, self.stack.data.server_dir
        whole = {node / FILE_NAME: SIZE_BYTES, server / FILE_NAME: SIZE_BYTES, node / RESERVE_NAME: RESERVE_BYTES}
        return sum(size - path.stat().st_size for path, size in whole.items())

    def info(self) -> dict[str, Any]:
        """The `disk` of the node."""
        found: dict[str, Any] = control.ask_node(self.stack.data, "node.info")["disk"]
        return found

    def wait_low(self, low: bool) -> None:
        wait_until(lambda: self.info()["low"] is low, 30, f"the disk does not become {'low' if low else 'free'}")

    def wait_settled(self) -> None:
        """What sandboxes had changed when it became low is on their disks."""
        wait_until(lambda: self.info()["settled"], 30, "what sandboxes have changed is not written")

    def fill(self, *, leave: int = 0) -> None:
        """Somebody else's data takes every block that is left, but for `leave` bytes."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (MIB, 4096):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue
            if leave:
                os.ftruncate(file.fileno(), file.tell() - leave)
            os.fsync(file.fileno())

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def events(self, sandbox_id: str) -> list[str]:
        """The types of a sandbox's events."""
        connection = sqlite3.connect(f"file:{self.stack.data.database_file}?mode=ro", uri=True)
        try:
            query = "select type from events where sandbox_id = ? order by seq"
            return [type for (type,) in connection.execute(query, (sandbox_id,))]
        finally:
            connection.close()


@contextmanager
def small_disk(**settings: Any) -> Iterator[SmallDisk]:
    """No block of it is kept for root: what is full is full for everybody."""
    place = Path(tempfile.mkdtemp(prefix="bellglass-small-", dir=PARENT_DIR))
    mount, image = place / "disk", place / "image"
    place.chmod(0o711)
    mount.mkdir()
    try:
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        run("mount", "-o", "loop", str(image), str(mount))
        try:
            with own_installation(settings=SETTINGS | settings, parent=mount) as stack:
                disk = SmallDisk(mount, stack)
                try:
                    yield disk
                finally:
                    disk.empty()
        finally:
            run("umount", str(mount))
    finally:
        image.unlink(missing_ok=True)
        mount.rmdir()
        place.rmdir()


def run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
