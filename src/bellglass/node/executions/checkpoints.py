"""Checkpoints of a SQLite file in WAL mode, off the thread that writes it.

A checkpoint waits for the disk twice (fsync of the WAL, then of the database). Made by the writer's own commit it would
stop the event loop for that long, 5-10 ms on an ordinary disk, in the middle of somebody's command.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

from bellglass.ballast import is_disk_full

log = logging.getLogger("bellglass.executions")
PASSES = 8
"""What is written during one pass is left to the next, which is shorter; the WAL begins anew once none is left."""
_BUSY, _FRAMES = range(2)


class Checkpoints:
    """A thread with a connection of its own. Nothing depends on it for safety: a checkpoint that fails or is late only
    leaves a longer WAL, and SQLite's own bound on that (`wal_autocheckpoint` of the writer) stays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._due = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Soon, in the thread; nothing more when one is due already."""
        self._due.set()

    def close(self) -> None:
        """After the one that runs. Safe to repeat."""
        self._closed = True
        self._due.set()
        self._thread.join()

    # --- in the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._closed:
                return
            try:
                self._checkpoint()
            except sqlite3.Error as error:
                if not is_disk_full(error, self._path.parent):
                    log.exception("a checkpoint of %s has failed; it is tried again later", self._path.name)

    def _checkpoint(self) -> None:
        # Opened for each: a connection that stays would keep pages of it in memory for a moment's work per minute.
        db = sqlite3.connect(self._path, isolation_level=None)
        try:
            frames = None
            for _ in range(PASSES):
                found = db.execute("pragma wal_checkpoint(passive)").fetchone()
                # The answer is about the moment at which the pass began: the same number twice means that none came.
                if self._closed or found[_BUSY] or found[_FRAMES] == frames:
                    return
                frames = found[_FRAMES]
        finally:
            db.close()
