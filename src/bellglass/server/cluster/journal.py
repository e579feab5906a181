"""Ingesting the node's journal: what really happened to sandboxes, exactly once.

An event and the cursor that says it is taken in go into one transaction, so a crash between two events repeats
nothing and loses nothing. The node forgets what was acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, bindparam, select

from bellglass import faultpoints
from bellglass.errors import NodeUnavailable
from bellglass.link import LinkStream
from bellglass.server.cluster.base import ClusterEngine, NodeInfo
from bellglass.server.db.tables import node_cursors
from bellglass.server.db.writer import Writer
from bellglass.server.sandboxes import events

MAX_LINE = 256 * 1024
_CURSOR = select(node_cursors.c.seq).where(node_cursors.c.node_id == bindparam("node"))
_SET_CURSOR = node_cursors.update().where(node_cursors.c.node_id == bindparam("node")).values(seq=bindparam("to"))
log = structlog.get_logger("bellglass.journal")


class Journal:
    def __init__(self, engine: ClusterEngine, writer: Writer) -> None:
        self._engine = engine
        self._writer = writer

    async def follow(self, info: NodeInfo) -> None:
        """Until the link breaks: take in every event after the cursor, and acknowledge."""
        node_id = info.node_id
        after = await self._writer.run(lambda connection: read_cursor(connection, node_id))
        async with await self._engine.open(node_id, "journal.follow", {"after": after}) as stream:
            await stream.head()
            async for batch in _batches(stream):
                through = await self._writer.run(partial(ingest, node_id=node_id, batch=batch))
                faultpoints.reach("server.journal.ingested")
                await self._engine.call(node_id, "journal.ack", {"through": through})
                faultpoints.reach("server.journal.acknowledged")
        raise NodeUnavailable("the node ended its journal's stream")


def read_cursor(connection: Connection, node_id: str) -> int:
    """The number of the last event taken in; 0 for a node that is new."""
    row = connection.execute(_CURSOR, {"node": node_id}).first()
    if row is None:
        connection.execute(node_cursors.insert().values(node_id=node_id, seq=0))
        return 0
    return int(row.seq)


def ingest(connection: Connection, node_id: str, batch: list[dict[str, Any]]) -> int:
    """Apply the events that are newer than the cursor; answers the new cursor."""
    cursor = read_cursor(connection, node_id)
    for event in batch:
        if event["seq"] <= cursor:
            continue
        events.apply(connection, event)
        cursor = event["seq"]
    connection.execute(_SET_CURSOR, {"node": node_id, "to": cursor})
    faultpoints.reach("server.journal.ingesting")
    return cursor


async def _batches(stream: LinkStream) -> AsyncIterator[list[dict[str, Any]]]:
    """Whole lines, as many as one piece of the body brought. An empty line is a sign of life."""
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE:
            raise NodeUnavailable(f"a journal line over {MAX_LINE} bytes")
        batch = [json.loads(line) for line in lines if line]
        if batch:
            yield batch
