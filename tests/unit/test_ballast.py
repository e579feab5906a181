"""The file that makes room for the last writes."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from pathlib import Path

import pytest

from bellglass import ballast as module
from bellglass.ballast import PIECE_BYTES, Ballast
from bellglass.errors import NoCapacity
from bellglass.node.journal import Journal


@pytest.fixture
def ballast(tmp_path: Path) -> Ballast:
    return Ballast(tmp_path / "ballast", 3 * PIECE_BYTES)


def test_it_takes_real_room_and_gives_it_in_pieces(ballast: Ballast) -> None:
    assert not ballast.give(), "there is nothing yet"
    assert ballast.fill() and ballast.fill()
    assert os.stat(ballast.path).st_blocks * 512 >= 3 * PIECE_BYTES, "a sparse file would keep nothing free"
    assert [ballast.give() for _ in range(4)] == [True, True, True, False]
    assert os.stat(ballast.path).st_blocks == 0
    assert ballast.fill() and ballast.held_bytes() == 3 * PIECE_BYTES


def test_a_start_gets_a_piece_only_where_it_has_none(ballast: Ballast, monkeypatch: pytest.MonkeyPatch) -> None:
    ballast.fill()
    ballast.make_room()
    assert ballast.held_bytes() == 3 * PIECE_BYTES
    monkeypatch.setattr(module, "free_bytes", lambda folder: PIECE_BYTES - 1)
    ballast.make_room()
    assert ballast.held_bytes() == 2 * PIECE_BYTES


def test_it_is_not_filled_from_the_last_room(ballast: Ballast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_bytes", lambda folder: module.ROOM_FACTOR * 3 * PIECE_BYTES - 1)
    assert not ballast.fill() and not ballast.path.exists()
    monkeypatch.setattr(module, "free_bytes", lambda folder: module.ROOM_FACTOR * 3 * PIECE_BYTES)
    assert ballast.fill()


def test_one_that_can_not_be_opened_gives_nothing_and_is_not_filled(
    ballast: Ballast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "open", no_descriptor)
        assert not ballast.fill() and not ballast.give()
    assert ballast.fill()
    with monkeypatch.context() as patched:
        patched.setattr(module.os, "open", no_descriptor)
        assert not ballast.give()
        with pytest.raises(NoCapacity):
            ballast.spend(full_for(1))
    assert ballast.held_bytes() == 3 * PIECE_BYTES and ballast.spend(full_for(1)) == 2


def full_for(times: int, code: int = sqlite3.SQLITE_FULL):
    calls = []

    def work() -> int:
        calls.append(1)
        if len(calls) <= times:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = code
            raise error
        return len(calls)

    return work


def test_work_is_repeated_while_there_is_something_to_give(ballast: Ballast) -> None:
    ballast.fill()
    assert ballast.spend(full_for(2)) == 3
    assert ballast.held_bytes() == PIECE_BYTES
    with pytest.raises(NoCapacity) as caught:
        ballast.spend(full_for(99))
    assert caught.value.details["resource"] == "disk" and ballast.held_bytes() == 0


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_CANTOPEN])
def test_other_words_for_a_full_disk_count_where_it_is_full(ballast: Ballast, code: int, monkeypatch) -> None:
    ballast.fill()
    with pytest.raises(sqlite3.OperationalError):
        ballast.spend(full_for(1, code))
    assert ballast.held_bytes() == 3 * PIECE_BYTES
    monkeypatch.setattr(module, "free_bytes", lambda folder: 0)
    assert ballast.spend(full_for(1, code)) == 2


def test_the_journal_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        file = tmp_path / "journal.db"
        kept = Ballast.beside(file)
        assert kept.fill()
        journal = await Journal.open(file)
        db = await journal._run(lambda db: db)  # to be used in its thread alone
        give = Ballast.give

        def no_more_pages(db: sqlite3.Connection) -> None:
            db.execute(f"pragma max_page_count = {db.execute('pragma page_count').fetchone()[0]}")

        def more_pages(self: Ballast) -> bool:
            return give(self) and db.execute("pragma max_page_count = 100000") is not None

        monkeypatch.setattr(Ballast, "give", more_pages)
        await journal._run(no_more_pages)
        await journal.meta("key", "x" * 50_000)
        assert await journal.meta("key") == "x" * 50_000
        assert kept.held_bytes() == kept.size_bytes - PIECE_BYTES
        os.truncate(kept.path, 0)
        await journal._run(no_more_pages)
        with pytest.raises(NoCapacity):
            await journal.meta("other", "x" * 50_000)
        assert await journal.meta("other") is None and await journal.meta("key") is not None
        journal.close()

    asyncio.run(scenario())
