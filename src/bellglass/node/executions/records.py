"""The records of executions, in a SQLite file of their own.

Written on the event loop without an fsync for each: a killed node loses nothing (the page cache has it), a host that
loses power may lose the last ones, but never the file: what is older must stay readable then, so SQLite syncs at its
checkpoints, which are rare and made in a thread. The file also holds each sandbox's next stream id, raised in steps, so
that a restarted node never uses one twice.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bellglass.ballast import Ballast, is_disk_full
from bellglass.node.contexts.store import STEP as CONTEXTS
from bellglass.node.contexts.store import ContextRows
from bellglass.node.executions.checkpoints import Checkpoints
from bellglass.node.schema import bring_forward

STREAM_ID_STEP = 1024
CHECKPOINT_WRITES = 600
"""300 commands, and 8 MiB of WAL, between two checkpoints."""
WAL_PAGES = 8192
"""32 MiB: where commands come without a pause no checkpoint catches up with them, and the loop stops for one, which is
short: nearly all is written back already."""
SCHEMA = (
    (
        "create table if not exists executions (sandbox_id text not null, id text not null,"
        " stream_id integer not null, digest text not null, state text not null, record text not null,"
        " resume text not null, primary key (sandbox_id, id)) without rowid",
        "create index if not exists executions_by_state on executions (sandbox_id, state, id)",
        "create table if not exists streams (sandbox_id text primary key, next_id integer not null) without rowid",
    ),
    (
        "create index executions_by_tag on executions (sandbox_id, json_extract(record, '$.tag'), id)"
        " where json_extract(record, '$.tag') is not null",
        "create index executions_by_pid on executions (sandbox_id, json_extract(record, '$.pid'), id)"
        " where state != 'running'",
    ),
    CONTEXTS,
)
"""Steps: see node/schema.py."""


@dataclass(frozen=True, slots=True)
class StoredExecution:
    id: str
    stream_id: int
    digest: str
    state: str
    record: dict[str, Any]
    resume: dict[str, Any]
    """What a restarted node needs to go on with a running one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which executions a list is to hold: with ids below `before`, and what else is not None."""

    limit: int = 100
    before: str | None = None
    state: str | None = None
    tag: str | None = None
    pid: int | None = None


class Records:
    """All sandboxes' records. Methods take well under a millisecond and are called on the loop. On a full disk the
    ballast makes room; without any left the writing ones raise NoCapacity (resource disk)."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self._ballast = Ballast.beside(path)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            bound = f"wal_autocheckpoint={WAL_PAGES}"
            for pragma in ("journal_mode=wal", "synchronous=normal", "cache_size=-512", bound):
                self._ballast.spend(partial(self._db.execute, f"pragma {pragma}"))
            self._ballast.spend(lambda: bring_forward(self._db, path, SCHEMA))
        except BaseException:
            self._db.close()
            raise
        self._writes = 0
        self._checkpoints = Checkpoints(path)
        self.contexts = ContextRows(self._db, self._write)

    def close(self) -> None:
        self._checkpoints.close()
        self._db.close()

    def insert(self, sandbox_id: str, stored: StoredExecution) -> None:
        self._write(
            "insert into executions values (?, ?, ?, ?, ?, ?, ?)",
            (
                sandbox_id,
                stored.id,
                stored.stream_id,
                stored.digest,
                stored.state,
                json.dumps(stored.record),
                json.dumps(stored.resume),
            ),
        )

    def input_ended(self, sandbox_id: str, execution_id: str, offset: int) -> None:
        self._write(
            "update executions set resume = json_set(resume, '$.stdin_end', ?) where sandbox_id = ? and id = ?",
            (offset, sandbox_id, execution_id),
        )

    def resized(self, sandbox_id: str, execution_id: str, terminal: dict[str, int]) -> None:
        self._write(
            "update executions set record = json_set(record, '$.terminal', json(?)) where sandbox_id = ? and id = ?",
            (json.dumps(terminal), sandbox_id, execution_id),
        )

    def finish(self, sandbox_id: str, execution_id: str, record: dict[str, Any]) -> None:
        self._write(
            "update executions set state = ?, record = ?, resume = '{}' where sandbox_id = ? and id = ?",
            (record["state"], json.dumps(record), sandbox_id, execution_id),
        )

    def forget(self, sandbox_id: str, execution_id: str) -> None:
        self._write("delete from executions where sandbox_id = ? and id = ?", (sandbox_id, execution_id))

    def forget_sandbox(self, sandbox_id: str) -> None:
        self._write("delete from executions where sandbox_id = ?", (sandbox_id,))
        self._write("delete from streams where sandbox_id = ?", (sandbox_id,))
        self.contexts.forget_sandbox(sandbox_id)

    def get(self, sandbox_id: str, execution_id: str) -> StoredExecution | None:
        rows = self._select("sandbox_id = ? and id = ?", (sandbox_id, execution_id), 1)
        return rows[0] if rows else None

    def running(self, sandbox_id: str) -> list[StoredExecution]:
        return self._select("sandbox_id = ? and state = 'running'", (sandbox_id,), -1)

    def finished_sizes(self, sandbox_id: str, log_limit_bytes: int) -> tuple[int, int]:
        """How many have ended, and the bytes of their logs together, each at most the limit."""
        query = (
            "select count(*), coalesce(sum(min(json_extract(record, '$.output_bytes'), ?)), 0) from executions"
            " where sandbox_id = ? and state != 'running'"
        )
        count, size = self._db.execute(query, (log_limit_bytes, sandbox_id)).fetchone()
        return int(count), int(size)

    def oldest_finished(self, sandbox_id: str) -> tuple[str, int] | None:
        """Its id, and the bytes of its output."""
        query = (
            "select id, json_extract(record, '$.output_bytes') from executions"
            " where sandbox_id = ? and state != 'running' order by id limit 1"
        )
        row = self._db.execute(query, (sandbox_id,)).fetchone()
        return (row[0], int(row[1] or 0)) if row else None

    def sandbox_ids(self) -> set[str]:
        """Of which there are records."""
        union = " union ".join(f"select sandbox_id from {table}" for table in ("executions", "streams", "contexts"))
        return {row[0] for row in self._db.execute(union)}

    def page(self, sandbox_id: str, wanted: Wanted) -> list[StoredExecution]:
        """The newest first, by id (ULIDs grow with time). The pid counts of those that have ended: of one that runs its
        row does not know it."""
        where = ["sandbox_id = ?"]
        values: list[Any] = [sandbox_id]
        if wanted.before is not None:
            where.append("id < ?")
            values.append(wanted.before)
        if wanted.state is not None:
            where.append("state = ?")
            values.append(wanted.state)
        if wanted.tag is not None:
            where.append("json_extract(record, '$.tag') = ?")
            values.append(wanted.tag)
        if wanted.pid is not None:
            where.append("state != 'running' and json_extract(record, '$.pid') = ?")
            values.append(wanted.pid)
        return self._select(" and ".join(where), tuple(values), wanted.limit)

    def next_stream_id(self, sandbox_id: str) -> int:
        row = self._db.execute("select next_id from streams where sandbox_id = ?", (sandbox_id,)).fetchone()
        return row[0] if row else 1

    def reserve_stream_ids(self, sandbox_id: str, up_to: int) -> None:
        """Ids below `up_to` count as used from now on."""
        self._write(
            "insert into streams values (?, ?) on conflict (sandbox_id) do update set next_id = excluded.next_id",
            (sandbox_id, up_to),
        )

    def _write(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        self._ballast.spend(lambda: self._execute(statement, values))
        self._writes += 1
        if self._writes % CHECKPOINT_WRITES == 0:
            self._checkpoints.begin()

    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            if not is_disk_full(error, self._folder):
                raise
            # A WAL that can't grow: once it is written back it begins anew, in the room that it has.
            self._db.execute("pragma wal_checkpoint(passive)").fetchone()
            self._db.execute(statement, values)

    def _select(self, where: str, values: tuple[Any, ...], limit: int) -> list[StoredExecution]:
        query = (
            "select id, stream_id, digest, state, record, resume from executions"
            f" where {where} order by id desc limit ?"
        )
        return [
            StoredExecution(row[0], row[1], row[2], row[3], json.loads(row[4]), json.loads(row[5]))
            for row in self._db.execute(query, (*values, limit))
        ]


class StreamIds:
    """Answers stream ids that were never used in this sandbox's life."""

    def __init__(self, records: Records, sandbox_id: str) -> None:
        self._records = records
        self._sandbox_id = sandbox_id
        self._next = records.next_stream_id(sandbox_id)
        self._reserved = self._next

    @property
    def highest_used(self) -> int:
        """No id above it was ever answered."""
        return self._next - 1

    def __call__(self) -> int:
        if self._next >= self._reserved:
            self._reserved = self._next + STREAM_ID_STEP
            self._records.reserve_stream_ids(self._sandbox_id, self._reserved)
        stream_id, self._next = self._next, self._next + 1
        return stream_id
