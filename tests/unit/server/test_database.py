"""The database: migrations, the writer, and what SQLite is told."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

import bellglass.server.db.migrations
from bellglass.ballast import PIECE_BYTES, Ballast, disk_full
from bellglass.errors import NoCapacity
from bellglass.server.db import migrate
from bellglass.server.db.engine import open_engine
from bellglass.server.db.reader import Reader
from bellglass.server.db.tables import metadata
from bellglass.server.db.writer import Writer
from bellglass.server.sandboxes import loop


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "bellglass.db"
    migrate.upgrade(path)
    return path


def test_migrations_make_the_schema_of_the_tables(database: Path) -> None:
    engine = open_engine(database)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    made, wanted = sqlite3.connect(database), sqlite3.connect(":memory:")
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    fresh = create_engine("sqlite://", creator=lambda: wanted, poolclass=StaticPool)
    metadata.create_all(fresh)
    indexes = "select name, sql from sqlite_master where type = 'index' and sql is not null order by name"
    assert made.execute(indexes).fetchall() == wanted.execute(indexes).fetchall()
    fresh.dispose()
    made.close()
    wanted.close()


def described(path: Path) -> dict[str, Any]:
    """Every column, key and index with all that SQLite knows of it, but for the places of columns: an addition to an
    old table can't choose its own."""
    found: dict[str, Any] = {}
    with contextlib.closing(sqlite3.connect(path)) as database:

        def rows(query: str) -> list[tuple[Any, ...]]:
            return database.execute(query).fetchall()

        for name, sql in rows("select name, sql from sqlite_master where type = 'table'"):
            found[name] = {
                "columns": sorted(row[1:] for row in rows(f"pragma table_xinfo({name})")),
                "foreign keys": sorted(row[2:] for row in rows(f"pragma foreign_key_list({name})")),
                "indexes": sorted(
                    (index[1:], *((row[0], *row[2:]) for row in rows(f"pragma index_xinfo('{index[1]}')")))
                    for index in rows(f"pragma index_list({name})")
                ),
                "numbers rows for ever": "AUTOINCREMENT" in sql,
                "rows": rows(f"select * from {name}") if name != "sqlite_sequence" else [],
            }
        made = "select type, name, tbl_name from sqlite_master order by type, name"
        partial = "select name, sql from sqlite_master where type = 'index' order by name"
        return {"tables": found, "all": rows(made), "index conditions": rows(partial)}


def test_a_new_one_is_what_the_migrations_make(database: Path, tmp_path: Path) -> None:
    migrate.ensure(tmp_path / "new.db")
    new, migrated = described(tmp_path / "new.db"), described(database)
    assert new == migrated
    assert len(new["tables"]) > 10 and any(table["indexes"] for table in new["tables"].values())
    with contextlib.closing(sqlite3.connect(database)) as changed:
        changed.execute("drop index ix_sandboxes_state")
    assert described(database) != new


def test_head_is_the_newest_file() -> None:
    scripts = ScriptDirectory(str(Path(bellglass.server.db.migrations.__file__).parent))
    assert scripts.get_heads() == [bellglass.server.db.migrations.HEAD]


def test_ensure_from_empty_and_again(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    assert migrate.current_revision(path) is None
    migrate.ensure(path)
    assert migrate.current_revision(path) == bellglass.server.db.migrations.HEAD
    before = path.stat().st_mtime_ns
    migrate.ensure(path)
    assert path.stat().st_mtime_ns == before


def test_a_database_that_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "junk.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises((migrate.MigrationFailed, sqlite3.DatabaseError)):
        migrate.ensure(path)


def test_what_sqlite_is_told(database: Path) -> None:
    engine = open_engine(database)
    with engine.connect() as connection:
        told = {
            name: connection.execute(text(f"pragma {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    engine.dispose()
    assert told == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def insert(name: str) -> Any:
    def job(connection: Connection) -> str:
        connection.execute(text("insert into projects values (:name, :name, 'x')"), {"name": name})
        return name

    return job


def names(connection: Connection) -> list[str]:
    return [row[0] for row in connection.execute(text("select name from projects order by 1"))]


def test_writer_keeps_failures_apart(database: Path) -> None:
    async def run() -> None:
        engine = open_engine(database)
        writer, reader = Writer(engine), Reader(engine)

        def broken(connection: Connection) -> None:
            insert("half")(connection)
            raise ZeroDivisionError

        try:
            # Queued before the thread runs: one batch, one commit.
            jobs = [writer.run(job) for job in (insert("a"), broken, insert("b"), insert("a"), insert("c"))]
            waiting = asyncio.gather(*jobs, return_exceptions=True)
            await asyncio.sleep(0)
            writer.start()
            results = await waiting
            assert [type(result).__name__ for result in results] == [
                "str",
                "ZeroDivisionError",
                "str",
                "IntegrityError",
                "str",
            ]
            assert reader.inline(names) == ["a", "b", "c"]
            await writer.run(insert("d"))
            assert reader.inline(names) == ["a", "b", "c", "d"], "no old snapshot"
            assert await reader.in_thread(names) == ["a", "b", "c", "d"]
        finally:
            await writer.close()
            reader.close()
            engine.dispose()

    asyncio.run(run())


def test_a_database_error_does_not_repeat_values(database: Path) -> None:
    engine = open_engine(database)
    with engine.connect() as connection:
        insert("canary-11")(connection)
        with pytest.raises(IntegrityError) as error:
            insert("canary-11")(connection)
    engine.dispose()
    assert "canary-11" not in str(error.value)


def test_an_answered_write_is_in_the_file(database: Path) -> None:
    async def run() -> None:
        engine = open_engine(database)
        writer = Writer(engine)
        writer.start()
        try:
            for i in range(20):
                await writer.run(insert(f"p{i}"))
                other = sqlite3.connect(database)
                assert other.execute("select count(*) from projects").fetchone() == (i + 1,)
                other.close()
        finally:
            await writer.close()
            engine.dispose()

    asyncio.run(run())


def test_a_waiter_that_leaves_does_not_stop_the_write(database: Path) -> None:
    async def run() -> None:
        engine = open_engine(database)
        writer = Writer(engine)
        try:
            task = asyncio.create_task(writer.run(insert("kept")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            writer.start()
            await writer.run(insert("next"))
        finally:
            await writer.close()
            engine.dispose()

    asyncio.run(run())
    connection = sqlite3.connect(database)
    assert connection.execute("select count(*) from projects").fetchone() == (2,)
    connection.close()


def limit_pages(connection: Connection, more: int) -> None:
    """From here on SQLite finds the disk full after so many more pages (it says so as for a real one)."""
    pages = connection.exec_driver_sql("pragma page_count").scalar_one()
    connection.exec_driver_sql(f"pragma max_page_count = {pages + more}")


def big(name: str) -> Callable[[Connection], str]:
    return insert(name + "x" * 60_000)


def test_a_full_disk_takes_ballast_for_what_may_spend_it(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        engine = open_engine(database)
        writer = Writer(engine)
        ballast = Ballast.beside(database)
        monkeypatch.setattr("bellglass.ballast.ROOM_FACTOR", 0)
        given = []
        give = Ballast.give

        def more_pages(self: Ballast) -> bool:
            if not give(self):
                return False
            given.append(1)
            opened[0].execute("pragma max_page_count = 1000000")
            return True

        monkeypatch.setattr(Ballast, "give", more_pages)
        opened: list[sqlite3.Connection] = []

        def remember(connection: Connection) -> None:
            opened[:] = [connection.connection.dbapi_connection]
            limit_pages(connection, 1)

        writer.start()
        try:
            assert await writer.run(insert("before")) == "before"
            await writer.run(remember)
            with pytest.raises(NoCapacity) as caught:
                await writer.run(big("refused"), spends=False)
            assert caught.value.details["resource"] == "disk" and caught.value.status == 503
            with pytest.raises(NoCapacity):
                await writer.run(big("no ballast yet"))
            assert ballast.fill() and ballast.held_bytes() == ballast.size_bytes
            results = await asyncio.gather(
                writer.run(big("spends")), writer.run(insert("small")), writer.run(big("not"), spends=False),
                return_exceptions=True,
            )  # fmt: skip
            assert [type(result) for result in results] == [str, str, NoCapacity]
            assert given == [1] and ballast.held_bytes() == ballast.size_bytes - PIECE_BYTES
        finally:
            await writer.close()
            engine.dispose()

    asyncio.run(run())
    connection = sqlite3.connect(database)
    found = [name.rstrip("x") for (name,) in connection.execute("select name from projects")]
    connection.close()
    assert sorted(found) == ["before", "small", "spends"]


def test_forgetting_goes_on_behind_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullOnce:
        ran = 0

        async def run(self, job: object) -> tuple[int, int]:
            self.ran += 1
            if self.ran == 1:
                raise disk_full()
            return 0, 0

    async def until_again() -> None:
        writer = FullOnce()
        forgetting = asyncio.create_task(loop.Forgetter(writer, 60.0, 60.0).run())  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            while writer.ran < 2 and not forgetting.done():
                await asyncio.sleep(0.005)
        assert not forgetting.done()
        forgetting.cancel()

    monkeypatch.setattr(loop, "FORGET_EVERY_S", 0.01)
    asyncio.run(until_again())
