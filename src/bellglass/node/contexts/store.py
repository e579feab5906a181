"""The contexts of sandboxes as rows beside the executions: what a restarted node goes on with."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

STEP = (
    "create table contexts (sandbox_id text not null, id text not null, row text not null,"
    " primary key (sandbox_id, id)) without rowid",
)
"""Of the schema of executions.db."""
RUNS_KEPT = 16


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run that was begun. `start`: the combined offset in its host's log from which on it is to be read."""

    id: str
    digest: str
    execution_id: str
    start: int
    started_at: float
    deadline_at: float | None
    """Wall clock, both."""
    state_lost: bool = False
    """The run before it had another host."""


@dataclass(frozen=True, slots=True)
class StoredContext:
    id: str
    language: str
    cwd: str
    user: str
    created_at: float
    execution_id: str | None = None
    """Of its newest host. Stored before that is started."""
    ready: bool = True
    """Its creator may have been told of it. One that is not when the node starts is deleted."""
    deleting: bool = False
    runs: list[StoredRun] = field(default_factory=list)
    """The last RUNS_KEPT, oldest first: an id of theirs is never run a second time."""


class ContextRows:
    """`write` runs a statement on the file, making room on a full disk; both raise as Records does."""

    def __init__(self, db: sqlite3.Connection, write: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._db = db
        self._write = write

    def of(self, sandbox_id: str) -> list[StoredContext]:
        rows = self._db.execute("select row from contexts where sandbox_id = ?", (sandbox_id,))
        found = [_read(json.loads(row[0])) for row in rows]
        return sorted(found, key=lambda context: (context.created_at, context.id))

    def put(self, sandbox_id: str, context: StoredContext) -> None:
        self._write("insert or replace into contexts values (?, ?, ?)", (sandbox_id, context.id, _write(context)))

    def remove(self, sandbox_id: str, context_id: str) -> None:
        self._write("delete from contexts where sandbox_id = ? and id = ?", (sandbox_id, context_id))

    def forget_sandbox(self, sandbox_id: str) -> None:
        self._write("delete from contexts where sandbox_id = ?", (sandbox_id,))


def _write(context: StoredContext) -> str:
    return json.dumps(asdict(context), separators=(",", ":"))


def _read(row: dict[str, Any]) -> StoredContext:
    return StoredContext(**{**row, "runs": [StoredRun(**run) for run in row["runs"]]})
