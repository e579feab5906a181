"""Lines of the node (what executions wrote) and of the events (what happened to the sandbox), merged by time.

A cursor has a place in each of the two, so a page that was cut goes on exactly there.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection

from bellglass.errors import InvalidRequest
from bellglass.model import Event, LogLine, LogPage, format_time
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.db.reader import Reader
from bellglass.server.events import store
from bellglass.server.events.service import to_event
from bellglass.server.events.store import Selection
from bellglass.server.executions.service import check_id
from bellglass.server.http.validation import shown
from bellglass.server.sandboxes import guard
from bellglass.wire import untrusted

EVENT_TYPES = ("sandbox.*", "network.*", "port.*")
MOST_EVENTS = 1000
"""The newest of a sandbox; refusals of its egress, of which there may be any number, are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """`search` is text that a line has to hold, letter by letter. `execution_id`: lines of that one alone."""

    backward: bool = False
    limit: int = 100
    cursor: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    search: str | None = None
    execution_id: str | None = None


class _Cursor(NamedTuple):
    """`place` in the node's lines and the `seq` of an event, to go on behind, or going back before; None: not begun."""

    place: list[int] | None = None
    seq: int | None = None


class Logs:
    def __init__(self, reader: Reader, cluster: ClusterEngine) -> None:
        self._reader = reader
        self._cluster = cluster

    async def page(self, project_id: str, sandbox_id: str, query: LogQuery, request_id: str) -> LogPage:
        """Raises NotFound, InvalidRequest, NodeUnavailable."""
        target = guard.readable(self._reader, project_id, sandbox_id)
        cursor = _decode(query.cursor)
        params = {
            **target.ref,
            "place": cursor.place,
            "backward": query.backward,
            "limit": query.limit,
            "start": None if query.start is None else max(query.start.timestamp(), 1.0),
            "end": None if query.end is None else max(query.end.timestamp(), 1.0),
            "search": query.search,
            "execution_id": None if query.execution_id is None else check_id(query.execution_id),
        }
        result = await self._cluster.call(target.node_id, "sandbox.logs", params, request_id=request_id)
        events: list[Event] = []
        if query.execution_id is None:
            events = await self._reader.in_thread(_events, project_id, sandbox_id)
        return _merge(query, cursor, result, [event for event in events if _fits(event, query, cursor)])


def _merge(query: LogQuery, cursor: _Cursor, result: dict[str, Any], events: list[Event]) -> LogPage:
    """The first `limit` of both. Where the node has more to tell, an event behind its last line has to wait."""
    told = [(line["time"], line["place"], None, LogLine.from_json(line)) for line in result["lines"]]
    if query.backward:
        events.reverse()
    if result["more"] and told:
        edge = told[-1][0]
        events = [event for event in events if (event.time >= edge if query.backward else event.time <= edge)]
    elif result["more"]:
        events = []
    both = [*told, *((event.time, None, event.seq, _line(event)) for event in events)]
    both.sort(key=lambda one: one[0], reverse=query.backward)  # stable: each keeps its own order
    cut = both[: query.limit]
    place, seq = cursor
    for _, line_place, event_seq, _ in cut:
        place, seq = line_place or place, event_seq if event_seq is not None else seq
    if len(cut) == len(both):
        place = result["place"]
    items = [line for *_, line in cut]
    more = bool(result["more"]) or len(cut) < len(both)
    return LogPage(items=items, cursor=_encode(_Cursor(place, seq)), more=more)


def _events(connection: Connection, project_id: str, sandbox_id: str) -> list[Event]:
    selection = Selection(project_id, sandbox_id, EVENT_TYPES)
    return [to_event(row) for row in store.newest(connection, selection, MOST_EVENTS)]


def _fits(event: Event, query: LogQuery, cursor: _Cursor) -> bool:
    if cursor.seq is not None and not (event.seq < cursor.seq if query.backward else event.seq > cursor.seq):
        return False
    if query.start is not None and event.time < format_time(query.start):
        return False
    if query.end is not None and event.time > format_time(query.end):
        return False
    return query.search is None or query.search in _line(event).text


def _line(event: Event) -> LogLine:
    told = " ".join(f"{name}={value}" for name, value in event.data.items() if isinstance(value, (str, int, float)))
    return LogLine(time=event.time, kind=event.type, execution_id=None, text=f"{event.type} {told}".rstrip())


def _encode(cursor: _Cursor) -> str:
    raw = json.dumps(list(cursor), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(cursor: str | None) -> _Cursor:
    if cursor is None:
        return _Cursor()
    try:
        value = untrusted.parse(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        value = None
    match value:
        case [None | [int(), int()] as place, None | int() as seq] if not any(
            isinstance(number, bool) or not 0 <= number < 2**53 for number in (*(place or ()), seq or 0)
        ):
            return _Cursor(place, seq)
    raise InvalidRequest(
        f"cursor: {shown(cursor)} was not given by logs",
        hint="take `cursor` of the page before, or leave it out",
        details={"field": "cursor"},
    )
