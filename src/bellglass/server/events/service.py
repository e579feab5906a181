"""Reading events: pages of them, and the pieces that a follower gets."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row

from bellglass.errors import InvalidRequest
from bellglass.ids import SANDBOX_ID
from bellglass.model import Event, format_time
from bellglass.server.db.reader import Reader
from bellglass.server.events import store
from bellglass.server.events.feed import Feed
from bellglass.server.events.store import Selection
from bellglass.server.http.moments import parse_moment
from bellglass.server.http.validation import shown
from bellglass.server.sandboxes import guard

_TYPE = re.compile(r"^[a-z_]+\.([a-z_]+|\*)\Z")
_CURSOR = re.compile(r"^[0-9]{1,18}\Z")
MAX_TYPES = 32


class Batch(NamedTuple):
    """`through` is the number to go on behind: of the last one, or of the newest that there was of any selection."""

    events: list[Event]
    through: int


class Events:
    def __init__(self, reader: Reader, feed: Feed) -> None:
        self._reader = reader
        self.feed = feed

    def check_sandbox(self, project_id: str, sandbox_id: str) -> None:
        """Events outlive their sandbox, one that was deleted too. Raises NotFound for what never was the project's."""
        if SANDBOX_ID.fullmatch(sandbox_id) and (
            self._reader.inline(store.knows, project_id, sandbox_id)
            or self._reader.inline(_is_there, project_id, sandbox_id)
        ):
            return
        raise guard.not_found()

    async def after(self, selection: Selection, seq: int, limit: int) -> Batch:
        """The next ones, in order."""

        def read(connection: Connection) -> Batch:
            last = max(store.last(connection), seq)
            rows = store.after(connection, selection, seq, last, limit)
            return Batch([to_event(row) for row in rows], rows[-1].seq if len(rows) == limit else last)

        return await self._reader.in_thread(read)

    async def newest(self, selection: Selection, limit: int) -> Batch:
        """The last ones, in order."""

        def read(connection: Connection) -> Batch:
            last = store.last(connection)
            rows = store.newest(connection, selection, limit) if limit else []
            return Batch([to_event(row) for row in rows if row.seq <= last], last)

        return await self._reader.in_thread(read)


def _is_there(connection: Connection, project_id: str, sandbox_id: str) -> bool:
    from bellglass.server.sandboxes import store as sandboxes  # it imports the events' store

    return sandboxes.find(connection, project_id, sandbox_id) is not None


def to_event(row: Row[Any]) -> Event:
    return Event(seq=row.seq, time=row.at, type=row.type, sandbox_id=row.sandbox_id, data=row.data)


def parse_cursor(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not _CURSOR.fullmatch(cursor):
        raise InvalidRequest(
            f"cursor: {shown(cursor)} was not given by a list of events",
            hint="take `cursor` of the page before, or `seq` of an event",
            details={"field": "cursor"},
        )
    return int(cursor)


def parse_types(types: list[str]) -> tuple[str, ...]:
    if len(types) > MAX_TYPES:
        raise InvalidRequest(f"type: {len(types)} of them, the most is {MAX_TYPES}", details={"field": "type"})
    for type in types:
        if not _TYPE.fullmatch(type):
            raise InvalidRequest(
                f"type: {shown(type)} is no type of events",
                hint="such as egress.refused, or egress.* for all that begin so",
                details={"field": "type"},
            )
    return tuple(types)


def parse_since(since: str | None) -> str | None:
    """A time, or a duration back from now."""
    moment = parse_moment(since, "since")
    return None if moment is None else format_time(moment)
