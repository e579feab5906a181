"""Pools of the node: set, told to the node, asked for a member at each create of their template.

The node keeps what it was last told, so it is told everything at each change and whenever it connects.
"""

from __future__ import annotations

from dataclasses import replace

import structlog
from sqlalchemy import Connection

from bellglass.egress.floor import Floor
from bellglass.errors import BellglassError, InvalidRequest, NodeUnavailable, NotFound
from bellglass.model import CreateSandbox, Pool, PoolStatus, PutPool, SandboxSpec, now
from bellglass.server.cluster.base import ClusterEngine, NodeInfo
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.http.validation import refuse
from bellglass.server.pools import store
from bellglass.server.sandboxes.validate import settle

MAX_SIZE = 1000
log = structlog.get_logger("bellglass.pools")


class Pools:
    """`load` before anything else."""

    def __init__(self, reader: Reader, writer: Writer, cluster: ClusterEngine, max_cpus: float) -> None:
        self._reader = reader
        self._writer = writer
        self._cluster = cluster
        self._max_cpus = max_cpus
        self._known: dict[str, Pool] = {}

    async def load(self) -> None:
        self._remember(await self._reader.in_thread(store.all_of_them))

    # --- the operator's ---------------------------------------------------------------------------------

    async def put(self, template: str, body: PutPool) -> Pool:
        """Answers once it is stored and the node, if it can be reached, is told. Raises InvalidRequest, NotSupported
        (isolation), NodeUnavailable while the node has not said which templates there are."""
        _check_counts(body)
        pool = await self._settled(template, body)

        def write(connection: Connection) -> list[Pool]:
            store.put(connection, pool)
            return store.all_of_them(connection)

        self._remember(await self._writer.run(write, spends=False))
        await self._tell_if_up()
        return await self.get(template)

    async def get(self, template: str) -> Pool:
        """Raises NotFound."""
        for pool in await self.list():
            if pool.template == template:
                return pool
        raise not_found(template)

    async def delete(self, template: str) -> None:
        """Its members go; sandboxes that were claimed from it stay. Raises NotFound."""

        def write(connection: Connection) -> list[Pool] | None:
            return store.all_of_them(connection) if store.remove(connection, template) else None

        left = await self._writer.run(write)
        if left is None:
            raise not_found(template)
        self._remember(left)
        await self._tell_if_up()

    # --- the node's -------------------------------------------------------------------------------------

    async def tell(self, info: NodeInfo) -> None:
        """A node connected: it hears what should be."""
        await self._tell(anew=True)

    async def _tell_if_up(self) -> None:
        try:
            await self._tell()
        except NodeUnavailable:
            log.info("the node is out of reach; it hears of the pools when it is back")

    async def _tell(self, *, anew: bool = False) -> None:
        wanted = [pool.to_json() for pool in self._known.values()]
        await self._cluster.call(None, "pool.apply", {"pools": wanted, "anew": anew})

    # --- a create's -------------------------------------------------------------------------------------

    async def take(self, spec: SandboxSpec, *, has_inputs: bool) -> str | None:
        """The id under which a member waits for this create, None where it has to start cold. Never fails: a create
        does not need a pool."""
        if spec.template not in self._known:
            return None
        try:
            answer = await self._cluster.call(None, "pool.take", {"spec": spec.to_json(), "has_inputs": has_inputs})
        except BellglassError as error:
            log.warning("no member could be asked for", template=spec.template, reason=error.message)
            return None
        taken = answer.get("sandbox_id")
        return str(taken) if taken else None

    async def release(self, sandbox_id: str, *, discard: bool = False) -> None:
        """The create of a member that was taken is not going to come. A node out of reach lets the promise lapse."""
        try:
            await self._cluster.call(None, "pool.release", {"sandbox_id": sandbox_id, "discard": discard})
        except BellglassError as error:
            log.info("a member could not be given back", sandbox=sandbox_id, reason=error.message)

    # --- inside -----------------------------------------------------------------------------------------

    def _remember(self, pools: list[Pool]) -> None:
        self._known = {pool.template: pool for pool in pools}

    async def _settled(self, template: str, body: PutPool) -> Pool:
        """The shape that a create with these values would get."""
        create = CreateSandbox(
            template=template,
            cpus=body.cpus,
            memory=body.memory,
            disk=body.disk,
            pids=body.pids,
            isolation=body.isolation,
        )
        spec = settle(create, await self._cluster.info(fresh=True), self._max_cpus, {}, Floor()).spec
        moment = now()
        return Pool(
            template=spec.template,
            size=body.size,
            ceiling=body.ceiling,
            cpus=spec.cpus,
            memory_bytes=spec.memory_bytes,
            disk_bytes=spec.disk_bytes,
            inodes=spec.inodes,
            pids=spec.pids,
            tier=spec.tier,
            created_at=moment,
            updated_at=moment,
        )

    async def list(self) -> list[Pool]:
        """With what the node has of each."""
        try:
            answer = await self._cluster.call(None, "pool.list", {})
        except NodeUnavailable:
            return list(self._known.values())
        found = {str(item["template"]): PoolStatus.from_json(item) for item in answer["pools"]}
        return [replace(pool, status=found.get(name)) for name, pool in self._known.items()]


def not_found(template: str) -> NotFound:
    return NotFound(
        f"there is no pool of template {template[:64]!r}",
        hint="`bellglass pools ls` lists them",
        details={"kind": "pool"},
    )


def _check_counts(body: PutPool) -> None:
    if not 0 <= body.size <= MAX_SIZE:
        raise refuse("size", body.size, "is out of bounds", f"from 0 to {MAX_SIZE}")
    if body.ceiling is not None and not body.size <= body.ceiling <= 2**31 - 1:
        raise InvalidRequest(
            f"ceiling: {body.ceiling} is less than size, or too large",
            hint=f"from {body.size} up, or leave it out",
            details={"field": "ceiling"},
        )
