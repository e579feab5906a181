"""The journal's thread: order, one commit for jobs that wait together, and errors that stay their own job's."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from bellglass.ballast import Ballast
from bellglass.node.journal_thread import JournalThread


class Rig:
    """A table of numbers. What the connection executes is in `statements`."""

    def __init__(self, folder) -> None:
        self.path = folder / "journal.db"
        self.statements: list[str] = []
        self.thread = JournalThread(self._connect, Ballast.beside(self.path))

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path)
        db.execute("create table if not exists numbers (n integer primary key)")
        db.set_trace_callback(self.statements.append)
        return db

    def add(self, number: int) -> asyncio.Future[int]:
        def work(db: sqlite3.Connection) -> int:
            db.execute("insert into numbers values (?)", (number,))
            return number

        return asyncio.ensure_future(self.thread.do(work))

    async def together(self, *numbers: int) -> list[int | BaseException]:
        """All of them wait while the thread is busy."""
        go = threading.Event()
        busy = asyncio.ensure_future(self.thread.do(lambda db: go.wait(20)))
        jobs = [self.add(number) for number in numbers]
        await asyncio.sleep(0)  # each has queued its job
        go.set()
        assert await busy
        return await asyncio.gather(*jobs, return_exceptions=True)

    async def stored(self) -> list[int]:
        return await self.thread.do(lambda db: [row[0] for row in db.execute("select n from numbers order by n")])


@pytest.fixture
def with_rig(run, tmp_path):
    def go(scenario) -> None:
        async def work() -> None:
            rig = Rig(tmp_path)
            try:
                await scenario(rig)
            finally:
                rig.thread.close()

        run(work())

    return go


def test_jobs_that_wait_together_share_a_commit(with_rig) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.add(0) == 0
        before = rig.statements.count("COMMIT")
        assert await rig.together(1, 2, 3) == [1, 2, 3]
        assert rig.statements.count("COMMIT") == before + 1
        assert await rig.stored() == [0, 1, 2, 3]

    with_rig(scenario)


def test_a_job_that_fails_takes_nothing_of_the_others(with_rig) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.add(7) == 7
        first, failed, last = await rig.together(1, 7, 2)
        assert (first, last) == (1, 2) and isinstance(failed, sqlite3.IntegrityError)
        assert await rig.stored() == [1, 2, 7]

    with_rig(scenario)


def test_what_a_failed_job_wrote_is_rolled_back(with_rig) -> None:
    def fails(db: sqlite3.Connection) -> None:
        db.execute("insert into numbers values (1)")
        raise ValueError("on purpose")

    async def scenario(rig: Rig) -> None:
        with pytest.raises(ValueError, match="on purpose"):
            await rig.thread.do(fails)
        assert await rig.stored() == []

    with_rig(scenario)


def test_jobs_that_wait_are_done_before_it_closes(run, tmp_path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path)
        jobs = [rig.add(number) for number in range(5)]
        await asyncio.sleep(0)
        rig.thread.close()
        assert await asyncio.gather(*jobs) == [0, 1, 2, 3, 4]
        with pytest.raises(RuntimeError, match="closed"):
            await rig.add(5)

    run(scenario())
