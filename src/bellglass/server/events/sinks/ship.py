"""One sink's loop: what is behind its cursor goes out, in order and at least once, however long the sink is away.

The cursor moves only once the sink has taken a batch, so one whose answer was lost, or whose server died, goes again,
with the same ids. Events that retention drops before the sink had them are counted beside the cursor, and the count
goes out as an event where they would have been.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any, NamedTuple

import structlog
from sqlalchemy import Connection, Row, select

from bellglass.model import now
from bellglass.server.db.reader import Reader
from bellglass.server.db.tables import event_sinks
from bellglass.server.db.writer import Writer
from bellglass.server.events import store
from bellglass.server.events.feed import Feed
from bellglass.server.events.sinks.base import Record, Sink, SinkFailed, Source

MOST = 500
"""Events of one batch."""
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
log = structlog.get_logger("bellglass.events")


class Next(NamedTuple):
    seq: int
    dropped: int
    rows: list[Row[Any]]


class Shipper:
    def __init__(self, reader: Reader, writer: Writer, feed: Feed, sink: Sink, source: Source) -> None:
        self._reader = reader
        self._writer = writer
        self._feed = feed
        self._sink = sink
        self._source = source
        self._most = MOST
        self._failures = 0
        self._problem: str | None = None

    async def run(self) -> None:
        """For ever."""
        with self._feed.following():
            while True:
                grown = self._feed.grown()
                try:
                    if not await self.step():
                        await grown.wait()
                    self._succeeded()
                except SinkFailed as error:
                    await asyncio.sleep(self._failed(error.message, error.retry_after_s))
                except Exception as error:  # a full disk, say: it is logged, and tried again like a sink that is away
                    log.exception("events could not be shipped", sink=self._sink.name)
                    await asyncio.sleep(self._failed(repr(error), None))

    async def status(self) -> dict[str, Any]:
        """For the operator: `waiting` events are kept for it, `dropped` went before it had them and are to be told."""
        found = await self._reader.in_thread(_waiting, self._sink.name)
        return {"name": self._sink.name, **found, "problem": self._problem}

    async def step(self) -> bool:
        """One batch; False when there is none. Raises SinkFailed."""
        found = await self._reader.in_thread(_read, self._sink.name, self._most)
        if found.dropped:
            await self._sink.send([self._source.gap(self._sink.name, found.seq, found.dropped, now())])
            await self._settle(found.seq, -found.dropped)
        elif not found.rows:
            return False
        elif await self._fits([self._source.record(row) for row in found.rows]):
            await self._settle(found.rows[-1].seq, 0)
            self._most = min(self._most * 2, MOST)
        elif len(found.rows) > 1:
            self._most = len(found.rows) // 2
        else:
            # Not even alone: it would hold up all that come behind it.
            log.warning("the sink takes no event of this size", sink=self._sink.name, seq=found.rows[0].seq)
            await self._settle(found.rows[0].seq, 1)
        return True

    async def _fits(self, records: list[Record]) -> bool:
        try:
            await self._sink.send(records)
        except SinkFailed as error:
            if error.too_large:
                return False
            raise
        return True

    async def _settle(self, seq: int, dropped: int) -> None:
        await self._writer.run(partial(_settle, name=self._sink.name, seq=seq, dropped=dropped), spends=False)

    def _failed(self, message: str, retry_after_s: float | None) -> float:
        """Seconds until the next try."""
        self._failures, self._problem = self._failures + 1, message
        if self._failures == 1:
            log.warning("a sink takes no events; they are kept", sink=self._sink.name, reason=message)
        backoff_s = min(FIRST_RETRY_S * 2 ** min(self._failures - 1, 16), LAST_RETRY_S)
        return max(backoff_s * random.uniform(0.5, 1.0), retry_after_s or 0.0)

    def _succeeded(self) -> None:
        if self._failures:
            log.info("the sink takes events again", sink=self._sink.name, failures=self._failures)
        self._failures, self._problem = 0, None


def _waiting(connection: Connection, name: str) -> dict[str, int]:
    found = _read(connection, name, 0)
    return {"waiting": store.count_after(connection, found.seq), "dropped": found.dropped}


def _read(connection: Connection, name: str, most: int) -> Next:
    sink = connection.execute(select(event_sinks).where(event_sinks.c.name == name)).first()
    seq, dropped = (sink.seq, sink.dropped) if sink is not None else (0, 0)
    return Next(seq, dropped, store.of_all(connection, seq, most))


def _settle(connection: Connection, name: str, seq: int, dropped: int) -> None:
    """More may have been dropped meanwhile; `dropped` is what to add."""
    which = event_sinks.c.name == name
    values = {"seq": seq, "dropped": event_sinks.c.dropped + dropped}
    if connection.execute(event_sinks.update().where(which).values(**values)).rowcount == 0:
        connection.execute(event_sinks.insert().values(name=name, seq=seq, dropped=max(dropped, 0)))


def keep_only(connection: Connection, names: list[str]) -> None:
    """The sinks that are configured have a cursor; a new one begins at the oldest event that is kept."""
    connection.execute(event_sinks.delete().where(event_sinks.c.name.not_in(names)))
    known = set(connection.execute(select(event_sinks.c.name)).scalars())
    for name in names:
        if name not in known:
            connection.execute(event_sinks.insert().values(name=name, seq=0, dropped=0))
