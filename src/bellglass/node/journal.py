"""The node's journal: what exists here, and numbered events that the server ingests exactly once.

SQLite with WAL and synchronous=FULL: a state change is on the disk before anybody hears of it. All access goes through
one thread (journal_thread.py), in order, so the loop never waits for a disk. Changes go intent, act, confirm; a node
that was killed between two of them finishes or undoes the act when it starts again.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bellglass.ballast import Ballast
from bellglass.model import TerminationReason, now
from bellglass.node.journal_thread import JournalThread
from bellglass.node.schema import bring_forward

T = TypeVar("T")
POOL_STATES = ("filling", "pooled", "draining")
TOLD_TOGETHER_S = 0.1
"""Events that tell the server nothing which an answer has not told it wait so long for others: see `_can_wait`."""
REFUSED = "egress.refused"
"""The kind of events that go as soon as the server has them: there may be thousands, and none changes a sandbox."""
MOST_EVENTS = 500
"""Read at a time."""
SCHEMA = (
    (
        "create table if not exists sandboxes"
        " (id text primary key, state text not null, body text not null, driver_state blob)",
        "create table if not exists events (seq integer primary key autoincrement, at text not null,"
        " kind text not null, sandbox_id text not null, generation integer not null, body text not null)",
        "create table if not exists meta (key text primary key, value text not null)",
    ),
)
"""Steps: see schema.py. A row's fields are in its body; one that is missing there has its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRow:
    """A sandbox as the journal has it. Times ending in `_unix` are seconds of the wall clock."""

    id: str
    generation: int
    project_id: str
    spec: dict[str, Any]
    driver: str
    state: str
    """`creating running ending ended`; a pool's machine that no project has: `filling pooled draining`."""
    runtime: str | None = None
    runtime_version: str | None = None
    started_at: str | None = None
    expires_at_unix: float | None = None
    idle_timeout_s: float | None = None
    reason: str | None = None
    message: str | None = None
    ended_at: str | None = None
    ended_at_unix: float | None = None
    reclaimed: bool = False
    disk_kept: bool = False
    """The disk outlives the machine, and is all that is left of it: see kept.py."""
    about: dict[str, Any] = field(default_factory=dict)
    """What the server's own row said at the create; nothing to the node, but a restored database may have lost it."""
    quarantined_at_unix: float | None = None
    """See quarantine.py."""
    cpu_ids: tuple[int, ...] = ()
    shell: str = "/bin/sh"
    """What runs a command given as one string."""
    pool: str | None = None
    """The pool whose member it is or was."""
    driver_state: bytes | None = None

    def to_json(self) -> dict[str, Any]:
        """All but `driver_state`."""
        return {name: getattr(self, name) for name in _IN_BODY}

    def ending(self, reason: str, message: str | None) -> SandboxRow:
        """With an end: `ended_at` is the moment at which it was decided."""
        return replace(self, state="ending", reason=reason, message=message, ended_at=now(), ended_at_unix=time.time())


_IN_BODY = tuple(one.name for one in fields(SandboxRow) if one.name != "driver_state")


@dataclass(frozen=True, slots=True)
class Event:
    seq: int
    at: str
    kind: str
    sandbox_id: str
    generation: int
    body: dict[str, Any]

    def line(self) -> bytes:
        head = {"seq": self.seq, "at": self.at, "kind": self.kind}
        record = head | {"sandbox_id": self.sandbox_id, "generation": self.generation} | self.body
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


class Journal:
    """Open with `open`; every method but `close` is a coroutine that returns once the change is durable. On a full
    disk the ballast makes room; without any left they raise NoCapacity (resource disk)."""

    def __init__(self, path: Path) -> None:
        self._thread = JournalThread(partial(_connect, path), Ballast.beside(path))
        self._grown = asyncio.Event()
        self._telling: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, path: Path) -> Journal:
        journal = cls(path)
        try:
            await journal._run(lambda db: None)
        except BaseException:
            journal.close()
            raise
        return journal

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        self._thread.close()

    # --- sandboxes --------------------------------------------------------------------------------------

    async def sandboxes(self) -> list[SandboxRow]:
        return await self._run(lambda db: [_row(*r) for r in db.execute("select body, driver_state from sandboxes")])

    async def put(self, row: SandboxRow, *events: tuple[str, dict[str, Any]]) -> None:
        """Store the row and append events, in one transaction."""

        def write(db: sqlite3.Connection) -> None:
            db.execute(
                "insert or replace into sandboxes values (?, ?, ?, ?)",
                (row.id, row.state, json.dumps(row.to_json()), row.driver_state),
            )
            for kind, more in events:
                _append(db, row.id, row.generation, kind, more)

        await self._run(write)
        if events:
            self._tell(can_wait=all(_can_wait(*event) for event in events))

    async def note(self, events: list[tuple[str, int, str, dict[str, Any]]]) -> None:
        """Append events alone: sandbox, generation, kind, body."""

        def write(db: sqlite3.Connection) -> None:
            for event in events:
                _append(db, *event)

        await self._run(write)
        self._tell()

    async def forget(self, sandbox_ids: list[str]) -> None:
        await self._run(
            lambda db: db.executemany("delete from sandboxes where id = ?", [(one,) for one in sandbox_ids])
        )

    # --- events -----------------------------------------------------------------------------------------

    async def events(self, after: int, limit: int = MOST_EVENTS) -> list[Event]:
        query = "select seq, at, kind, sandbox_id, generation, body from events where seq > ? order by seq limit ?"
        return await self._run(
            lambda db: [
                Event(seq, at, kind, sandbox_id, generation, json.loads(body))
                for seq, at, kind, sandbox_id, generation, body in db.execute(query, (after, limit))
            ]
        )

    async def acknowledge(self, through: int) -> None:
        """The server has ingested these. They stay for a while: a restored, older database asks for them again."""
        await self.meta("acknowledged", str(through))

    async def forget_events(self, before: str, most: int) -> None:
        """Acknowledged events go that are older than `before` (RFC 3339), or more than `most`, or REFUSED ones.
        Numbers are never used again."""

        def prune(db: sqlite3.Connection) -> None:
            row = db.execute("select value from meta where key = 'acknowledged'").fetchone()
            nth = db.execute("select seq from events order by seq desc limit 1 offset ?", (most,)).fetchone()
            db.execute(
                "delete from events where seq <= ? and (at < ? or seq <= ? or kind = ?)",
                (int(row[0]) if row else 0, before, nth[0] if nth else 0, REFUSED),
            )

        await self._run(prune)

    async def unread_bytes(self, kind: str) -> int:
        """About how much of this kind the server has not acknowledged."""
        query = (
            "select coalesce(sum(length(body)), 0) from events where kind = ? and seq >"
            " coalesce((select cast(value as integer) from meta where key = 'acknowledged'), 0)"
        )
        return await self._run(lambda db: int(db.execute(query, (kind,)).fetchone()[0]))

    def grown(self) -> asyncio.Event:
        """Take it before reading `events`; it is set once there are more, of those that can wait up to TOLD_TOGETHER_S
        later."""
        return self._grown

    # --- facts ------------------------------------------------------------------------------------------

    async def meta(self, key: str, value: str | None = None) -> str | None:
        """The stored value; with `value` given it is stored, and the former one answered."""

        def access(db: sqlite3.Connection) -> str | None:
            row = db.execute("select value from meta where key = ?", (key,)).fetchone()
            if value is not None:
                db.execute("insert or replace into meta values (?, ?)", (key, value))
            return row[0] if row else None

        return await self._run(access)

    # --- inside -----------------------------------------------------------------------------------------

    def _tell(self, *, can_wait: bool = False) -> None:
        if can_wait:
            if self._telling is None:
                self._telling = asyncio.get_running_loop().call_later(TOLD_TOGETHER_S, self._tell)
            return
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._grown.set()
        self._grown = asyncio.Event()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._thread.do(work)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    try:
        db.execute("pragma journal_mode=wal")
        db.execute("pragma synchronous=full")
        db.execute("pragma cache_size=-512")
        bring_forward(db, path, SCHEMA)
        _number_from_now(db)
    except BaseException:
        db.close()
        raise
    return db


def _number_from_now(db: sqlite3.Connection) -> None:
    """Event numbers never go back, even where an older copy of this file was restored: the server, which remembers the
    last number that it took in, would pass over new events with numbers below it. So a node that starts goes on at the
    clock's milliseconds."""
    with db:
        last = db.execute("select seq from sqlite_sequence where name = 'events'").fetchone()
        ahead = max(last[0] if last else 0, int(time.time() * 1000))
        if last:
            db.execute("update sqlite_sequence set seq = ? where name = 'events'", (ahead,))
        else:
            db.execute("insert into sqlite_sequence values ('events', ?)", (ahead,))


def _append(db: sqlite3.Connection, sandbox_id: str, generation: int, kind: str, body: dict[str, Any]) -> None:
    db.execute(
        "insert into events (at, kind, sandbox_id, generation, body) values (?, ?, ?, ?, ?)",
        (now(), kind, sandbox_id, generation, json.dumps(body)),
    )


def _can_wait(kind: str, body: dict[str, Any]) -> bool:
    """Whether nobody waits for the server to hear it this way: the caller's answer told it, or it is a note."""
    return kind in ("sandbox.started", "sandbox.reclaimed") or (
        kind == "sandbox.ended" and body.get("reason") == TerminationReason.USER
    )


def _row(body: str, driver_state: bytes | None) -> SandboxRow:
    known = {key: value for key, value in json.loads(body).items() if key in _IN_BODY}
    known["cpu_ids"] = tuple(known.get("cpu_ids", ()))
    return SandboxRow(**known, driver_state=driver_state)
