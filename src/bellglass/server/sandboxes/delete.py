"""Deleting a sandbox: the intent is stored, the node kills every process, the row disappears.

Repeats and concurrent deletes share one task; a client that hangs up changes nothing; with the node out of reach the
row stays `stopping` and the reconcile loop finishes.
"""

from __future__ import annotations

import asyncio

import structlog
from sqlalchemy import Connection

from bellglass import faultpoints
from bellglass.errors import NoCapacity, NodeUnavailable, VersionMismatch
from bellglass.model import State, TerminationReason, now
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.sandboxes import guard, store
from bellglass.server.sandboxes.create import Creator

ROOM_S = 15.0
"""How long a delete on a full disk waits for the room that it makes."""
ROOM_PAUSE_S = 0.25
log = structlog.get_logger("bellglass.sandboxes")


class Deleter:
    def __init__(self, reader: Reader, writer: Writer, cluster: ClusterEngine, creator: Creator) -> None:
        self._reader = reader
        self._writer = writer
        self._cluster = cluster
        self._creator = creator
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def delete(self, project_id: str, sandbox_id: str, request_id: str | None) -> None:
        """Returns when every process is dead and the id answers 404; at once if that is so already. Raises NotFound,
        NodeUnavailable."""
        row = self._reader.inline(store.access, project_id, sandbox_id)
        if row is None:
            raise guard.not_found()
        if row.deleted_at is not None:
            return
        if row.state in (State.ENDED, State.FAILED):
            await self._writer.run(lambda connection: _hide(connection, sandbox_id))
            await self.drop(sandbox_id, row.generation, row.node_id, request_id)
            return
        await asyncio.shield(self.start(sandbox_id, row.generation, row.node_id, request_id))

    async def drop(self, sandbox_id: str, generation: int, node_id: str | None, request_id: str | None = None) -> None:
        """What the node still has of an ended one goes: its logs, and its disk if that was kept. Without a node a disk
        is dropped by the reconcile loop, logs when their retention is over."""
        params = {"sandbox_id": sandbox_id, "generation": generation}
        try:
            await self._cluster.call(node_id, "sandbox.delete", params, request_id=request_id)
        except (NodeUnavailable, VersionMismatch) as error:
            log.warning("the node did not drop an ended sandbox", sandbox=sandbox_id, reason=error.message)

    def start(
        self, sandbox_id: str, generation: int, node_id: str | None, request_id: str | None = None
    ) -> asyncio.Task[None]:
        """The task that deletes it; the one under way if there is one."""
        task = self._tasks.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(
                self._delete(sandbox_id, generation, node_id, request_id), name=f"delete:{sandbox_id}"
            )
            self._tasks[sandbox_id] = task
            task.add_done_callback(lambda done: self._done(sandbox_id, done))
        return task

    async def close(self) -> None:
        """Give up what is under way; the rows stay `stopping` and are finished at the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, sandbox_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[sandbox_id]
        if not task.cancelled():
            task.exception()  # seen: its client may be gone

    async def _delete(self, sandbox_id: str, generation: int, node_id: str | None, request_id: str | None) -> None:
        try:
            await self._writer.run(
                lambda connection: store.change(
                    connection,
                    sandbox_id,
                    "sandbox.stopping",
                    from_states=(State.CREATING, State.RUNNING),
                    state=State.STOPPING,
                )
            )
        except NoCapacity:  # the disk is full, and the delete makes room: its answer waits until it is stored
            log.warning("a delete is begun before it is stored", sandbox=sandbox_id)
        faultpoints.reach("server.delete.intent_stored")
        await self._creator.settled(sandbox_id)
        try:
            result = await self._cluster.call(
                node_id,
                "sandbox.delete",
                {"sandbox_id": sandbox_id, "generation": generation},
                request_id=request_id,
            )
        except NodeUnavailable as error:
            raise NodeUnavailable(
                error.message, hint="the delete is stored and goes on when the node is back; a repeat tells"
            ) from error
        faultpoints.reach("server.delete.node_answered")
        await self._store(sandbox_id, result.get("ended_at"))
        faultpoints.reach("server.delete.row_hidden")

    async def _store(self, sandbox_id: str, ended_at: str | None) -> None:
        """What the node gives back is room for this."""
        deadline = asyncio.get_running_loop().time() + ROOM_S
        while True:
            try:
                await self._writer.run(lambda connection: _deleted(connection, sandbox_id, ended_at))
                return
            except NoCapacity:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(ROOM_PAUSE_S)


def _deleted(connection: Connection, sandbox_id: str, ended_at: str | None) -> None:
    if not store.end(connection, sandbox_id, TerminationReason.USER, ended_at):
        _hide(connection, sandbox_id)  # it had ended by itself meanwhile
    faultpoints.reach("server.delete.settling")


def _hide(connection: Connection, sandbox_id: str) -> None:
    store.change(connection, sandbox_id, "sandbox.deleted", deleted_at=now())
