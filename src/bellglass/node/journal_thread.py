"""The one thread that has the journal's database open: jobs in order, and those that wait together share a commit.

A job's future is set after the commit, so what was answered is on the disk.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from bellglass.ballast import Ballast
from bellglass.write_queue import Job, Outcome, WriteQueue, deliver

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class JournalThread:
    """`connect` is called in the thread, before the first job; what it raises is that job's error."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], ballast: Ballast) -> None:
        self._connect = connect
        self._ballast = ballast
        self._db: sqlite3.Connection | None = None
        self._queue = WriteQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    async def do(self, work: Work[T]) -> T:
        """`work` in a transaction; answers after the commit. What it raises is raised here, and is rolled back. It may
        be run more than once, and must have no effect but on the database. Raises NoCapacity (resource disk) when the
        disk is full and no ballast is left, RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError("the journal is closed")
        done: T = await self._queue.put(work)
        return done

    def close(self) -> None:
        """After the jobs that wait. Safe to repeat."""
        if not self._closed:
            self._closed = True
            self._queue.close()
        self._thread.join()

    # --- in the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        last = False
        while not last:
            batch, last = self._queue.next_batch()
            if batch:
                deliver(self._do_all(batch))
        if self._db is not None:
            self._db.close()

    def _do_all(self, batch: list[Job]) -> list[Outcome]:
        """Together, if all succeed. Else nothing was done, and each is tried by itself: no error is another job's."""
        if len(batch) > 1:
            with suppress(Exception):  # whose it is shows below
                return self._commit(batch)
        outcomes: list[Outcome] = []
        for job in batch:
            try:
                outcomes += self._ballast.spend(partial(self._commit, [job]))
            except Exception as error:  # noqa: BLE001 - handed to the one who waits for this job
                outcomes.append(Outcome(job, error=error))
        return outcomes

    def _commit(self, batch: list[Job]) -> list[Outcome]:
        if self._db is None:
            self._db = self._connect()
        with self._db:
            return [Outcome(job, job.work(self._db)) for job in batch]
