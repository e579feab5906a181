"""Settling what a crash or a lost link left open, and forgetting what is old.

What exists is the node's journal, what should exist is the database: on every connect rows that are in between are
compared with the node's list. Sandboxes of the node that no row knows go into quarantine.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection

from bellglass.errors import SandboxFailed
from bellglass.model import State, TerminationReason, format_time
from bellglass.server.cluster.base import ClusterEngine, NodeInfo
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.network.service import Networks
from bellglass.server.quarantine.service import Quarantine
from bellglass.server.sandboxes import create, idempotency, store
from bellglass.server.sandboxes.create import Creator
from bellglass.server.sandboxes.delete import Deleter

JOURNAL_GRACE_S = 5.0
"""A running row that the node does not list has this long for its end to come out of the journal."""
SETTLE_EVERY_S = 30.0
SETTLE_SOON_S = 0.5
"""While something is in between."""
FORGET_EVERY_S = 600.0
log = structlog.get_logger("bellglass.reconcile")


class Reconciler:
    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        cluster: ClusterEngine,
        creator: Creator,
        deleter: Deleter,
        quarantine: Quarantine,
        networks: Networks,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._cluster = cluster
        self._creator = creator
        self._deleter = deleter
        self._quarantine = quarantine
        self._networks = networks

    async def run(self, info: NodeInfo) -> None:
        """Settle now and again: a delete or a create may fail while the link holds."""
        while True:
            settled = await self.settle(info)
            pause_s = SETTLE_EVERY_S if settled else SETTLE_SOON_S
            await asyncio.sleep(min(pause_s, self._quarantine.due_s + SETTLE_SOON_S))

    async def settle(self, info: NodeInfo) -> bool:
        """Compare rows that are not ended with the node's list, and bring each to a true state. False while the node is
        still at work on one that nobody waits for."""
        on_node = await self._listed(info)
        rows = await self._rows()
        settled = True
        for row in rows:
            item = on_node.get(row.id)
            if row.state == State.STOPPING:
                self._deleter.start(row.id, row.generation, row.node_id)
                settled = False
            elif row.state == State.CREATING and not self._creator.under_way(row.id):
                await self._writer.run(partial(_settle_create, sandbox_id=row.id, item=item))
                settled = settled and (item is None or item.get("state") in (State.RUNNING, State.ENDED))
        if late := [row for row in rows if row.state == State.RUNNING and _other_clock(row, on_node)]:
            await self._settle_clocks(info, late)
        await self._networks.settle(rows, on_node)
        await self._quarantine.settle(info, on_node, {row.id for row in rows})
        if [row for row in rows if row.state == State.RUNNING and not _runs(on_node.get(row.id))]:
            await asyncio.sleep(JOURNAL_GRACE_S)
            await self._end_lost(info)
        return settled

    async def _settle_clocks(self, info: NodeInfo, rows: list[Any]) -> None:
        """Lifetimes changed on the node by a request whose server did not live to write it down."""
        on_node = await self._listed(info)  # anew: a change may have come between the list and the rows
        for row in rows:
            if _other_clock(row, on_node):
                await self._writer.run(
                    partial(
                        store.set_clock,
                        sandbox_id=row.id,
                        before=row.expires_at,
                        expires_at=on_node[row.id].get("expires_at"),
                    )
                )

    async def _end_lost(self, info: NodeInfo) -> None:
        on_node = await self._listed(info)
        for row in await self._rows():
            item = on_node.get(row.id)
            if row.state != State.RUNNING or _runs(item):
                continue
            if item is not None:
                # Its end was told to a database that was newer than this one.
                reason = item.get("termination_reason") or TerminationReason.FAILED
                await self._writer.run(
                    partial(store.end, sandbox_id=row.id, reason=reason, ended_at=item.get("ended_at"))
                )
            else:
                log.warning("the node does not know a running sandbox", sandbox=row.id)
                await self._writer.run(
                    partial(
                        store.end,
                        sandbox_id=row.id,
                        reason=TerminationReason.NODE_LOST,
                        ended_at=None,
                        message="its node has no trace of it",
                    )
                )

    async def _listed(self, info: NodeInfo) -> dict[str, dict[str, Any]]:
        answer = await self._cluster.call(info.node_id, "sandbox.list", {})
        return {str(item["sandbox_id"]): item for item in answer["sandboxes"]}

    async def _rows(self) -> list[Any]:
        return await self._reader.in_thread(store.in_states, *store.LIVE)


def _settle_create(connection: Connection, sandbox_id: str, item: dict[str, Any] | None) -> None:
    """A create whose server died or whose link never came back."""
    if item is not None and item.get("state") == State.RUNNING:
        store.change(
            connection,
            sandbox_id,
            "sandbox.running",
            from_states=(State.CREATING,),
            state=State.RUNNING,
            runtime=item.get("runtime"),
            runtime_version=item.get("runtime_version"),
            started_at=item.get("started_at"),
            expires_at=item.get("expires_at"),
        )
    elif item is not None and item.get("state") == State.ENDED:
        reason = item.get("termination_reason") or TerminationReason.FAILED
        store.end(connection, sandbox_id, reason, item.get("ended_at"))
    elif item is None:
        error = SandboxFailed("the server or its link to the node broke while it was created")
        create.failed(connection, project_id="", sandbox_id=sandbox_id, error=error, key=None)


def _runs(item: dict[str, Any] | None) -> bool:
    return item is not None and item.get("state") != State.ENDED


def _other_clock(row: Any, on_node: dict[str, dict[str, Any]]) -> bool:
    item = on_node.get(row.id)
    return item is not None and item.get("state") == State.RUNNING and item.get("expires_at") != row.expires_at


class Forgetter:
    """Ended rows and idempotency keys leave when their time is over."""

    def __init__(self, writer: Writer, retention_s: float, idempotency_s: float) -> None:
        self._writer = writer
        self._retention_s = retention_s
        self._idempotency_s = idempotency_s

    async def run(self) -> None:
        while True:
            try:
                await self.forget(datetime.now(UTC))
            except Exception:  # a full disk must not end it for good
                log.exception("what is old could not be forgotten")
            await asyncio.sleep(FORGET_EVERY_S)

    async def forget(self, moment: datetime) -> None:
        """All that is over at `moment`."""
        ended = format_time(moment - timedelta(seconds=self._retention_s))
        keys = format_time(moment - timedelta(seconds=self._idempotency_s))

        def write(connection: Connection) -> tuple[int, int]:
            return (
                store.forget_ended_before(connection, ended),
                idempotency.forget_before(connection, keys),
            )

        gone = await self._writer.run(write)
        if any(gone):
            log.info("forgotten", sandboxes=gone[0], idempotency_keys=gone[1])
