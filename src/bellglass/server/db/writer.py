"""All writes go through one thread: SQLite has one writer anyway, and the event loop never waits for a disk.

Jobs that wait together share a commit; each has a savepoint, so one that fails takes nothing of the others with it.
A future is set only after the commit: what was answered is on disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from bellglass.ballast import Ballast, disk_full, is_disk_full
from bellglass.errors import InternalError
from bellglass.server.db.engine import WRITER
from bellglass.write_queue import Job, Outcome, WriteQueue, deliver

Result = TypeVar("Result")


class Writer:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ballast = Ballast.beside(Path(str(engine.url.database)))
        self._queue = WriteQueue()
        self._thread = threading.Thread(target=self._work, name="db-writer", daemon=True)
        self._closed = False
        self.after_commit: Callable[[Connection], None] | None = None
        """Called in the writer's thread after each commit, with its connection."""

    def start(self) -> None:
        self._thread.start()

    async def run(self, job: Callable[[Connection], Result], *, spends: bool = True) -> Result:
        """Run `job` in a transaction; answers after the commit. What it raises is raised here, and is rolled back.

        On a full disk it is run again with some of the ballast freed, where it `spends`; without any left NoCapacity
        (resource disk) is raised. A job must have no effect but on the database."""
        if self._closed:
            raise InternalError("the server is going down", hint="retry in a moment")
        done: Result = await self._queue.put(job, spends=spends)
        return done

    async def close(self) -> None:
        """After the jobs that are queued."""
        if not self._closed:
            self._closed = True
            self._queue.close()
            await asyncio.to_thread(self._thread.join)

    # --- in the thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        with self._engine.connect().execution_options(**{WRITER: True}) as connection:
            last = False
            while not last:
                batch, last = self._queue.next_batch()
                if batch:
                    deliver(self._commit_somehow(connection, batch))
                    if self.after_commit is not None:
                        self.after_commit(connection)

    def _commit_somehow(self, connection: Connection, batch: list[Job]) -> list[Outcome]:
        """As `_commit`; what found the disk full is tried again with some ballast freed."""
        done: list[Outcome] = []
        while batch:
            full: list[Job] = []
            for outcome in _commit(connection, batch):
                if self._found_no_room(outcome.error):
                    full.append(outcome.job)
                else:
                    done.append(outcome)
            batch = [job for job in full if job.spends]
            if batch and not self._ballast.give():
                batch = []
            done += [Outcome(job, error=disk_full()) for job in full if job not in batch]
        return done

    def _found_no_room(self, error: BaseException | None) -> bool:
        """SQLite may have rolled back by itself; then what is raised is that there is nothing to roll back."""
        while error is not None:
            if isinstance(error, DBAPIError) and is_disk_full(error.orig, self._ballast.path.parent):
                return True
            error = error.__context__
        return False


def _commit(connection: Connection, batch: list[Job]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    try:
        with connection.begin():
            if len(batch) == 1:
                # No savepoint, which costs as much as a small job: what fails takes only itself back.
                outcomes.append(Outcome(batch[0], value=batch[0].work(connection)))
            else:
                outcomes += [_run_apart(connection, job) for job in batch]
    except Exception as error:  # noqa: BLE001 - the commit failed, or the only job: nothing of the batch is true
        return [Outcome(job, error=error) for job in batch]
    return outcomes


def _run_apart(connection: Connection, job: Job) -> Outcome:
    """One of several in a transaction: what it did goes when it fails, and nothing else."""
    try:
        with connection.begin_nested():
            return Outcome(job, value=job.work(connection))
    except Exception as error:  # noqa: BLE001 - handed to the one who waits for this job
        return Outcome(job, error=error)
