"""The one thread that has the journal's database open: jobs in order, and those that wait together share a commit.

A commit waits for the disk; of a hundred creates at once a hundred would. A job's future is set after the commit, so
what was answered is on the disk.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from bellglass.ballast import Ballast

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
MOST_JOBS = 64
"""In one commit."""


class _Job(NamedTuple):
    work: Work[Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class _Outcome(NamedTuple):
    job: _Job
    value: Any = None
    error: Exception | None = None


class JournalThread:
    """`connect` is called in the thread, before the first job; what it raises is that job's error."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], ballast: Ballast) -> None:
        self._connect = connect
        self._ballast = ballast
        self._db: sqlite3.Connection | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    async def do(self, work: Work[T]) -> T:
        """`work` in a transaction; answers after the commit. What it raises is raised here, and is rolled back. It may
        be run more than once, and must have no effect but on the database. Raises NoCapacity (resource disk) when the
        disk is full and no ballast is left, RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError("the journal is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, future, loop))
        return await future

    def close(self) -> None:
        """After the jobs that wait. Safe to repeat."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    # --- in the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        last = False
        while not last:
            batch, last = self._next_batch()
            if batch:
                _deliver(self._do_all(batch))
        if self._db is not None:
            self._db.close()

    def _next_batch(self) -> tuple[list[_Job], bool]:
        batch: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            batch.append(job)
            if len(batch) == MOST_JOBS:
                return batch, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _do_all(self, batch: list[_Job]) -> list[_Outcome]:
        """Together, if all succeed. Else nothing was done, and each is tried by itself: no error is another job's."""
        if len(batch) > 1:
            with suppress(Exception):  # whose it is shows below
                return self._commit(batch)
        outcomes: list[_Outcome] = []
        for job in batch:
            try:
                outcomes += self._ballast.spend(partial(self._commit, [job]))
            except Exception as error:  # noqa: BLE001 - handed to the one who waits for this job
                outcomes.append(_Outcome(job, error=error))
        return outcomes

    def _commit(self, batch: list[_Job]) -> list[_Outcome]:
        if self._db is None:
            self._db = self._connect()
        with self._db:
            return [_Outcome(job, job.work(self._db)) for job in batch]


def _deliver(outcomes: list[_Outcome]) -> None:
    for outcome in outcomes:
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            outcome.job.loop.call_soon_threadsafe(_settle, outcome)


def _settle(outcome: _Outcome) -> None:
    future = outcome.job.future
    if future.done():  # the waiter was cancelled; the change is made all the same
        return
    if outcome.error is not None:
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.value)
