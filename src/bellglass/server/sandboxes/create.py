"""Creating a sandbox: check, insert the row, start it on the node, settle the row. The work is a task of the server's
own, so a client that hangs up changes nothing.

A break of the link in mid-create is mended by asking again: the node's create is idempotent by id and generation.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection

from bellglass import faultpoints
from bellglass.errors import (
    BellglassError,
    Conflict,
    NoCapacity,
    NodeUnavailable,
    NotSupported,
    RequestError,
    SandboxFailed,
    VersionMismatch,
    from_dict,
)
from bellglass.ids import new_sandbox_id
from bellglass.model import CreateSandbox, Sandbox, State, TerminationReason, now
from bellglass.server.cluster.base import ClusterEngine, NodeInfo
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.limits import store as limits
from bellglass.server.network.service import Networks
from bellglass.server.pools.service import Pools
from bellglass.server.sandboxes import guard, idempotency, store
from bellglass.server.sandboxes.validate import Settled, settle
from bellglass.server.templates.aliases import Aliases

RELINK_S = 15.0
"""How long a create waits for a link that broke under it."""


class Created(NamedTuple):
    """`status` 201 for a new sandbox, 200 for one that get_or_create found."""

    status: int
    sandbox: dict[str, Any]


class Creator:
    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        cluster: ClusterEngine,
        pools: Pools,
        networks: Networks,
        aliases: Aliases,
        max_cpus: float,
        max_sandboxes: int,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._cluster = cluster
        self._max_cpus = max_cpus
        self._max_sandboxes = max_sandboxes
        self._networks = networks
        self._aliases = aliases
        self._pools = pools
        self._by_sandbox: dict[str, asyncio.Task[Created]] = {}
        self._by_key: dict[tuple[str, str], tuple[str, asyncio.Task[Created]]] = {}
        self._tasks: set[asyncio.Task[Created]] = set()

    async def create(self, project_id: str, body: CreateSandbox, key: str | None, request_id: str | None) -> Created:
        """Raises InvalidRequest, NotSupported, Conflict (a live sandbox has the name), IdempotencyConflict,
        LimitExceeded (the project has all the sandboxes it may have), NoCapacity, NodeUnavailable, SandboxFailed."""
        if key is None:
            return await asyncio.shield(self._spawn(project_id, body, None, "", request_id))
        body_sha256 = idempotency.digest(body)
        # No await between the look and the claim in `_by_key`, so that of two requests one finds the other.
        if under_way := self._by_key.get((project_id, key)):
            idempotency.check_same(key, under_way[0], body_sha256)
            return await asyncio.shield(under_way[1])
        held = self._reader.inline(idempotency.find, project_id, key)
        if held is not None:
            idempotency.check_same(key, held.body_sha256, body_sha256)
            return await self._again(project_id, held)
        task = self._spawn(project_id, body, key, body_sha256, request_id)
        self._by_key[project_id, key] = (body_sha256, task)
        task.add_done_callback(lambda _: self._by_key.pop((project_id, key), None))
        return await asyncio.shield(task)

    async def settled(self, sandbox_id: str) -> None:
        """Until a create of this server that is under way has ended, either way."""
        if task := self._by_sandbox.get(sandbox_id):
            await asyncio.wait([task])

    def under_way(self, sandbox_id: str) -> bool:
        return sandbox_id in self._by_sandbox

    async def close(self) -> None:
        """Give up what is under way; rows stay `creating` and are settled at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- inside -----------------------------------------------------------------------------------------

    def _spawn(
        self, project_id: str, body: CreateSandbox, key: str | None, body_sha256: str, request_id: str | None
    ) -> asyncio.Task[Created]:
        sandbox_id = new_sandbox_id()
        task = asyncio.create_task(
            self._create(project_id, sandbox_id, body, key, body_sha256, request_id), name=f"create:{sandbox_id}"
        )
        self._tasks.add(task)
        self._by_sandbox[sandbox_id] = task

        def done(_: asyncio.Task[Created]) -> None:
            self._tasks.discard(task)
            del self._by_sandbox[sandbox_id]
            if not task.cancelled():
                task.exception()  # seen: its client may be gone

        task.add_done_callback(done)
        return task

    async def _create(
        self,
        project_id: str,
        sandbox_id: str,
        body: CreateSandbox,
        key: str | None,
        body_sha256: str,
        request_id: str | None,
    ) -> Created:
        info = await self._cluster.info()
        if all(template.name != self._aliases.resolve(body.template, info) for template in info.templates):
            info = await self._cluster.info(fresh=True)  # it may have been built a moment ago
        body = replace(body, template=self._aliases.resolve(body.template, info))
        presets = await self._networks.presets(body.network)
        settled = settle(body, info, self._max_cpus, presets, self._networks.floor)
        taken = None
        if self._adds_one(project_id, body):
            taken = await self._pools.take(settled.spec, has_inputs=bool(body.inputs))
        sandbox = _new(taken or sandbox_id, body, settled, info)
        if taken is not None:
            self._by_sandbox[taken] = task = self._by_sandbox[sandbox_id]
            task.add_done_callback(lambda _: self._by_sandbox.pop(taken, None))

        def insert(connection: Connection) -> Sandbox | None:
            nonlocal sandbox
            found = store.find_live_name(connection, project_id, body.name) if body.name else None
            if found is not None and not body.get_or_create:
                raise Conflict(
                    f"name: a live sandbox is called {body.name!r} already",
                    hint="take another name, or `get_or_create`",
                    details={"field": "name", "sandbox_id": found.id},
                )
            if found is None:
                limits.check_room(connection, project_id, self._max_sandboxes)
                if taken is not None and store.is_known(connection, taken):
                    # A create that was cut off left a row of that id: its machine is nobody's to have.
                    sandbox = replace(sandbox, id=sandbox_id)
                store.add(connection, project_id, sandbox, settled.template.env)
            if key is not None:
                idempotency.claim(connection, project_id, key, body_sha256, (found or sandbox).id)
            return found

        found: Sandbox | None = sandbox
        try:
            found = await self._writer.run(insert, spends=False)
        finally:
            if taken is not None and (found is not None or sandbox.id != taken):
                await self._pools.release(taken, discard=sandbox.id != taken)
        if found is not None:
            return await self._found(project_id, found, key)
        faultpoints.reach("server.create.row_written")
        return await self._start(project_id, sandbox, settled, body, key, request_id)

    def _adds_one(self, project_id: str, body: CreateSandbox) -> bool:
        """Whether the insert is going to add a row, as far as one can see before it: only then a machine is taken out
        of a pool, or refused creates would keep it from everybody else. Raises LimitExceeded."""
        if body.name and self._reader.inline(store.find_live_name, project_id, body.name) is not None:
            return False
        self._reader.inline(limits.check_room, project_id, self._max_sandboxes)
        return True

    async def _start(
        self,
        project_id: str,
        sandbox: Sandbox,
        settled: Settled,
        body: CreateSandbox,
        key: str | None,
        request_id: str | None,
    ) -> Created:
        params = {
            "sandbox_id": sandbox.id,
            "generation": sandbox.generation,
            "project_id": project_id,
            "spec": settled.spec.to_json(),
            "inputs": {path: file.to_json() for path, file in body.inputs.items()},
            # What only this database would know: a node that has it can give it back to a restored one.
            "about": {
                "name": sandbox.name,
                "owner": sandbox.owner,
                "labels": sandbox.labels,
                "auto_publish": sandbox.auto_publish,
                "auto_publish_host": sandbox.auto_publish_host,
                "auto_publish_tls": sandbox.auto_publish_tls,
                "created_at": sandbox.created_at,
                "template_env": settled.template.env,
            },
        }
        try:
            result = await self._on_node(params, request_id)
        except (NodeUnavailable, VersionMismatch) as error:
            # Nothing is known: the row stays `creating` until the node is back.
            raise type(error)(
                error.message,
                hint="whether it started is unknown; retry with the same Idempotency-Key, or list by name",
                details={"sandbox_id": sandbox.id},
            ) from error
        except (NoCapacity, RequestError, NotSupported):  # the node made nothing
            await self._writer.run(lambda connection: store.remove(connection, sandbox.id))
            raise
        except BellglassError as error:
            error.details.setdefault("sandbox_id", sandbox.id)
            await self._writer.run(partial(failed, project_id=project_id, sandbox_id=sandbox.id, error=error, key=key))
            raise

        faultpoints.reach("server.create.node_answered")

        def running(connection: Connection) -> Created:
            store.change(
                connection,
                sandbox.id,
                "sandbox.running",
                # The journal's event may have come first.
                from_states=(State.CREATING, State.RUNNING),
                state=State.RUNNING,
                runtime=result["runtime"],
                runtime_version=result["runtime_version"],
                started_at=result["started_at"],
                expires_at=result["expires_at"],
            )
            answer = settle_answer(connection, project_id, sandbox.id, 201, key)
            faultpoints.reach("server.create.settling")
            return answer

        created = await self._writer.run(running)
        faultpoints.reach("server.create.answer_stored")
        return created

    async def _on_node(self, params: dict[str, Any], request_id: str | None) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RELINK_S
        while True:
            try:
                return await self._cluster.call(None, "sandbox.create", params, request_id=request_id)
            except NodeUnavailable:
                if loop.time() >= deadline or not await self._cluster.wait_up(deadline):
                    raise

    async def _found(self, project_id: str, found: Sandbox, key: str | None) -> Created:
        await self.settled(found.id)
        return await self._writer.run(lambda connection: settle_answer(connection, project_id, found.id, 200, key))

    async def _again(self, project_id: str, held: idempotency.Held) -> Created:
        """The stored answer. Without one the first request was cut off by the server's end."""
        if held.status is None:
            await self.settled(held.sandbox_id)
            found = self._reader.inline(store.find, project_id, held.sandbox_id)
            if found is None:
                raise self._why_gone(project_id, held.sandbox_id)
            if found.state == State.FAILED:
                raise SandboxFailed(found.message or "it could not be started", details={"sandbox_id": found.id})
            if found.state == State.CREATING:
                raise NodeUnavailable("the first request with this key has no outcome yet", hint="retry in a moment")
            return Created(201, found.to_json())
        assert held.response is not None
        if held.status >= 400:
            raise from_dict(held.response, status=held.status)
        return Created(held.status, held.response)

    def _why_gone(self, project_id: str, sandbox_id: str) -> BellglassError:
        """What it made was deleted before it could be answered."""
        row = self._reader.inline(store.access, project_id, sandbox_id)
        if row is None:
            return guard.not_found()
        return guard.gone(row.id, row.state, row.termination_reason, row.ended_at)


def settle_answer(connection: Connection, project_id: str, sandbox_id: str, status: int, key: str | None) -> Created:
    """The row as it is now becomes the answer. Raises SandboxGone if it was deleted while it was created."""
    sandbox = store.find(connection, project_id, sandbox_id)
    if sandbox is None or sandbox.state == State.STOPPING:
        raise guard.gone(sandbox_id, State.STOPPING, None, None)
    answer = sandbox.to_json()
    if key is not None:
        idempotency.finish(connection, project_id, key, status, answer)
    return Created(status, answer)


def failed(connection: Connection, *, project_id: str, sandbox_id: str, error: BellglassError, key: str | None) -> None:
    """The sandbox could not be started: its row says so and stays readable."""
    store.change(
        connection,
        sandbox_id,
        "sandbox.failed",
        # Ended: the node's journal was faster than its answer. One that is being deleted stays with that.
        from_states=(State.CREATING, State.RUNNING, State.ENDED),
        state=State.FAILED,
        termination_reason=TerminationReason.FAILED,
        message=error.message,
        ended_at=now(),
    )
    if key is not None and not error.retryable:
        idempotency.finish(connection, project_id, key, error.status, error.to_dict())


def _new(sandbox_id: str, body: CreateSandbox, settled: Settled, info: NodeInfo) -> Sandbox:
    spec = settled.spec.to_json() | {"network": settled.spec.network}
    return Sandbox(
        id=sandbox_id,
        state=State.CREATING,
        termination_reason=None,
        message=None,
        name=body.name,
        owner=body.owner,
        labels=dict(body.labels),
        auto_publish=body.auto_publish,
        auto_publish_host=body.auto_publish_host,
        auto_publish_tls=list(body.auto_publish_tls),
        expires_at=None,
        runtime=None,
        runtime_version=None,
        node=info.node_id,
        generation=1,
        created_at=now(),
        started_at=None,
        ended_at=None,
        **spec,
    )
