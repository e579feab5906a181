"""Space kept for the day on which the disk is full: what must be written then (deletes, ends) takes its place.

SQLite can write nothing on a full disk, not even that something was deleted. So a daemon keeps a file that holds
nothing, and gives it up in pieces, one for each write that would fail otherwise; guests that write at the same moment
can take a piece away, not all of them. It is filled again once there is room. Nothing else may rely on it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from bellglass.errors import NoCapacity

T = TypeVar("T")
SIZE_BYTES = 16 * 2**20
PIECE_BYTES = 2**20
ROOM_FACTOR = 4
"""It is filled only where so many times its size is free: never from what others wait for."""
FILE_NAME = "ballast"
_NEARLY_FULL_BYTES = 256 * 1024
_LOCK = threading.Lock()


class Ballast:
    """Of one daemon's folder; any number of objects can stand for it. Methods are safe in any thread, and after a crash
    at any point: what the file has is what there is."""

    def __init__(self, path: Path, size_bytes: int = SIZE_BYTES) -> None:
        self.path = path
        self.size_bytes = size_bytes

    @classmethod
    def beside(cls, database: Path) -> Self:
        return cls(database.with_name(FILE_NAME))

    def held_bytes(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def fill(self) -> bool:
        """Whether it has its full size, now or already."""
        with _LOCK:
            if (held := self.held_bytes()) >= self.size_bytes:
                return True
            if free_bytes(self.path.parent) < ROOM_FACTOR * self.size_bytes:
                return False
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:  # no inode on the disk, or no descriptor
                return False
            try:
                os.posix_fallocate(descriptor, 0, self.size_bytes)
            except OSError:
                os.ftruncate(descriptor, held)
                return False
            finally:
                os.close(descriptor)
            return True

    def make_room(self) -> None:
        """A piece is free on the disk, if there is any left to give: for a start, which has to make small files."""
        if free_bytes(self.path.parent) < PIECE_BYTES:
            self.give()

    def give(self) -> bool:
        """Free a piece; False when nothing is left to give, or none can be given now."""
        with _LOCK:
            if (held := self.held_bytes()) == 0:
                return False
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:  # no descriptor
                return False
            try:
                os.ftruncate(descriptor, max(held - PIECE_BYTES, 0))
                # Journaling file systems give blocks to others only once it is on disk that they are free.
                os.fsync(descriptor)
            except OSError:
                return False
            finally:
                os.close(descriptor)
            return True

    def spend(self, work: Callable[[], T]) -> T:
        """`work()`, again with a piece freed as often as SQLite finds no room. `work` must have no effect where it
        raises. Raises NoCapacity (resource disk) when nothing is left to give."""
        while True:
            try:
                return work()
            except sqlite3.Error as error:
                if not is_disk_full(error, self.path.parent):
                    raise
                if not self.give():
                    raise disk_full() from error


def is_disk_full(error: BaseException | None, folder: Path) -> bool:
    """Whether this error of SQLite's means that its disk is full; `folder` is the database's."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return False
    primary = code & 0xFF
    if primary == sqlite3.SQLITE_FULL:
        return True
    # Where it can't grow its shared memory, or make its files, it says only that much.
    return primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and free_bytes(folder) < _NEARLY_FULL_BYTES


def free_bytes(folder: Path) -> int:
    """What an ordinary user can still write on the disk that holds this folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def disk_full() -> NoCapacity:
    return NoCapacity(
        "disk: the host's disk is full, the change can't be stored",
        hint="delete sandboxes or files in them, or let the operator free some of the host's disk; then retry",
        details={"resource": "disk", "free": 0},
    )
