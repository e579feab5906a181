"""What is old leaves, and of a project that has too many the oldest; both are counted for sinks that had not got them.

A project whose own events were too many is told so by an event.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from sqlalchemy import Connection, select

from bellglass.model import format_time
from bellglass.server.db.reader import Reader
from bellglass.server.db.tables import event_sinks
from bellglass.server.db.writer import Writer
from bellglass.server.events import store

EVERY_S = 60.0
AT_ONCE = 2000
"""Rows of one transaction: others wait for it."""
KEPT_SHARE = 0.95
"""A project over its most is brought down to that much of it, so that it isn't told at each look."""
log = structlog.get_logger("bellglass.events")


class Retention:
    def __init__(self, reader: Reader, writer: Writer, retention_s: float, most: int) -> None:
        self._reader = reader
        self._writer = writer
        self._retention_s = retention_s
        self._most = most

    async def run(self) -> None:
        while True:
            try:
                await self.enforce(datetime.now(UTC))
            except Exception:  # a full disk must not end it for good
                log.exception("old events could not be dropped")
            await asyncio.sleep(EVERY_S)

    async def enforce(self, moment: datetime) -> None:
        """All that is over at `moment`."""
        before = format_time(moment - timedelta(seconds=self._retention_s))
        gone = AT_ONCE
        while gone == AT_ONCE:
            gone = await self._writer.run(partial(_drop_old, before=before))
        counts = await self._reader.in_thread(store.count_by_project)
        for project_id, count in counts.items():
            if count > self._most:
                await self._shorten(project_id, count - int(self._most * KEPT_SHARE))

    async def _shorten(self, project_id: str, over: int) -> None:
        log.warning("a project has too many events", project=project_id, dropped=over, most=self._most)
        while over > 0:
            most = min(over, AT_ONCE)
            over -= most
            await self._writer.run(partial(_drop_of, project_id=project_id, most=most))


def _drop_old(connection: Connection, before: str) -> int:
    seqs = store.oldest_before(connection, before, AT_ONCE)
    _drop(connection, seqs)
    return len(seqs)


def _drop_of(connection: Connection, project_id: str, most: int) -> None:
    seqs = store.oldest_of(connection, project_id, most)
    _drop(connection, seqs)
    store.add(connection, "events.dropped", project_id, None, {"count": len(seqs), "through": max(seqs, default=0)})


def _drop(connection: Connection, seqs: list[int]) -> None:
    if not seqs:
        return
    for sink in connection.execute(select(event_sinks)).all():
        if missed := sum(seq > sink.seq for seq in seqs):
            which = event_sinks.c.name == sink.name
            connection.execute(event_sinks.update().where(which).values(dropped=event_sinks.c.dropped + missed))
    store.remove(connection, seqs)
