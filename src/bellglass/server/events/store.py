"""Rows of events. `type` is `sandbox.creating`, `sandbox.ended`, `network.changed`, `egress.refused` and the like.

Each has a number that is higher than all before it, also those of a copy of the database that was replaced by an older
one: see `number_from_now`. `at` is when it happened, which for a refusal is a little before it was numbered.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, insert, or_, select

from bellglass.model import now
from bellglass.server.db.tables import events, sandbox_labels, sandboxes

ADDED = "bellglass_events_added"
"""In the connection's info once a transaction has added some: the writer tells who follows them."""

# Made once: each change of state adds one, and making the statement takes longer than executing it.
_ADD = insert(events)
_LAST = select(func.max(events.c.seq))
_KNOWN = select(events.c.seq).where(
    events.c.sandbox_id == bindparam("sandbox"), events.c.project_id == bindparam("project")
)


class Selection(NamedTuple):
    """Which of a project's events. `types` are exact, or end in `.*`; `since` is RFC 3339 with microseconds."""

    project_id: str
    sandbox_id: str | None = None
    types: tuple[str, ...] = ()
    since: str | None = None
    owner: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


def add(connection: Connection, type: str, project_id: str, sandbox_id: str | None, data: dict[str, Any]) -> None:
    record = {"at": now(), "type": type, "project_id": project_id, "sandbox_id": sandbox_id, "data": data}
    connection.execute(_ADD, record)
    connection.info[ADDED] = True


def add_all(connection: Connection, records: list[dict[str, Any]]) -> None:
    """`at`, `type`, `project_id`, `sandbox_id` and `data` of each, which are numbered in this order."""
    if records:
        connection.execute(_ADD, records)
        connection.info[ADDED] = True


def last(connection: Connection) -> int:
    """The number of the newest; 0 without any."""
    return connection.execute(_LAST).scalar_one() or 0


def knows(connection: Connection, project_id: str, sandbox_id: str) -> bool:
    """Whether there is an event of that sandbox of that project."""
    return connection.execute(_KNOWN, {"sandbox": sandbox_id, "project": project_id}).first() is not None


def after(connection: Connection, selection: Selection, seq: int, through: int, limit: int) -> list[Row[Any]]:
    """The next ones behind `seq` up to `through`, in order."""
    query = _selected(selection).where(events.c.seq > seq, events.c.seq <= through)
    return list(connection.execute(query.order_by(events.c.seq).limit(limit)))


def newest(connection: Connection, selection: Selection, limit: int) -> list[Row[Any]]:
    """The last ones, in order."""
    query = _selected(selection).order_by(events.c.seq.desc()).limit(limit)
    return list(reversed(list(connection.execute(query))))


def of_all(connection: Connection, seq: int, limit: int) -> list[Row[Any]]:
    """The next ones behind `seq` of whatever project."""
    return list(connection.execute(select(events).where(events.c.seq > seq).order_by(events.c.seq).limit(limit)))


def count_after(connection: Connection, seq: int) -> int:
    return int(connection.execute(select(func.count()).where(events.c.seq > seq)).scalar_one())


def _selected(wanted: Selection) -> Select[Any]:
    query = select(events).where(events.c.project_id == wanted.project_id)
    if wanted.sandbox_id is not None:
        query = query.where(events.c.sandbox_id == wanted.sandbox_id)
    if wanted.types:
        query = query.where(or_(*(_of_type(type) for type in wanted.types)))
    if wanted.since is not None:
        query = query.where(events.c.at >= wanted.since)
    if wanted.owner is not None:
        owned = select(sandboxes.c.id).where(
            sandboxes.c.project_id == wanted.project_id, sandboxes.c.owner == wanted.owner
        )
        query = query.where(events.c.sandbox_id.in_(owned))
    for key, value in wanted.labels:
        fits = select(sandbox_labels.c.sandbox_id).where(sandbox_labels.c.key == key, sandbox_labels.c.value == value)
        query = query.where(events.c.sandbox_id.in_(fits))
    return query


def _of_type(type: str) -> Any:
    if type.endswith(".*"):
        return events.c.type.startswith(type[:-1], autoescape=True)
    return events.c.type == type


# --- retention --------------------------------------------------------------------------------------------


def oldest_before(connection: Connection, moment: str, limit: int) -> list[int]:
    """Numbers of those that happened before then."""
    query = select(events.c.seq).where(events.c.at < moment).order_by(events.c.at).limit(limit)
    return list(connection.execute(query).scalars())


def oldest_of(connection: Connection, project_id: str, limit: int) -> list[int]:
    query = select(events.c.seq).where(events.c.project_id == project_id).order_by(events.c.seq).limit(limit)
    return list(connection.execute(query).scalars())


def count_by_project(connection: Connection) -> dict[str, int]:
    query = select(events.c.project_id, func.count()).group_by(events.c.project_id)
    return {project_id: count for project_id, count in connection.execute(query)}


def remove(connection: Connection, seqs: Iterable[int]) -> None:
    connection.execute(delete(events).where(events.c.seq == bindparam("gone")), [{"gone": seq} for seq in seqs])


def number_from_now(connection: Connection) -> None:
    """Numbers never go back, even where an older copy of the database was restored: whoever reads on behind the last
    number that he has seen would miss new events with numbers below it, and a collector that drops repeats would drop
    them. So a server that starts goes on at the clock's milliseconds. Before the first event is added."""
    if connection.dialect.name != "sqlite":
        return  # one that several servers share is not put back by copying a file
    ahead = max(last(connection), int(time.time() * 1000))
    found = connection.exec_driver_sql(
        "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'events'", (ahead,)
    ).rowcount
    if not found:
        connection.exec_driver_sql("INSERT INTO sqlite_sequence VALUES ('events', ?)", (ahead,))
