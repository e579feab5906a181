"""The network of one sandbox: read, replaced, and brought to the node where a crash or a lost link came between.

The row comes first: from its commit on the change is what should be, whatever becomes of the request. The node takes
no generation that is older than the one it has, so of two changes the later one stays, in whatever order they arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import structlog

from bellglass import faultpoints
from bellglass.egress.floor import Floor
from bellglass.errors import BellglassError, Conflict, NodeUnavailable, SandboxGone
from bellglass.model import (
    Network,
    NetworkPolicy,
    NetworkTraffic,
    Record,
    ResolvedRule,
    SandboxNetwork,
    State,
    read_network,
)
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.network import hosts, store
from bellglass.server.network.judge import Presets, judge
from bellglass.server.network.store import Stored
from bellglass.server.sandboxes import guard

log = structlog.get_logger("bellglass.network")
Ref = dict[str, Any]
"""`sandbox_id` and `generation` of a sandbox."""
MOST_TELLS = 4
MOST_UNTOLD = 1024


class Networks:
    def __init__(self, reader: Reader, writer: Writer, cluster: ClusterEngine, floor: Floor) -> None:
        self._reader = reader
        self._writer = writer
        self._cluster = cluster
        self.floor = floor
        self._untold: dict[str, int] = {}
        """Sandboxes whose newest change is not known to be in force, and its generation. It was asked for here, so it
        stays, also where the database is an older copy and the node had later ones before."""

    async def get(self, project_id: str, sandbox_id: str, request_id: str | None) -> SandboxNetwork:
        """Raises NotFound, NodeUnavailable."""
        try:
            target = guard.running(self._reader, project_id, sandbox_id)
            found = await self._cluster.call(target.node_id, "sandbox.network", target.ref, request_id=request_id)
            return _shown(found)
        except (Conflict, SandboxGone):  # not yet, or not any more
            guard.readable(self._reader, project_id, sandbox_id)
            if (stored := self._reader.inline(store.find, sandbox_id)) is None:
                raise guard.not_found() from None
            return SandboxNetwork(network=stored.network, generation=stored.generation, resolved=None)

    async def put(self, project_id: str, sandbox_id: str, wanted: Network, request_id: str | None) -> SandboxNetwork:
        """Returns once it is in force: what it refuses is cut, and nothing new of that gets through. Where another
        change came behind this one, that one is answered. Raises InvalidRequest, NotSupported, NotFound, SandboxGone,
        Conflict (not started yet), NodeUnavailable (it is stored, and comes into force when the node is back)."""
        target = guard.running(self._reader, project_id, sandbox_id)
        network = judge(wanted, await self._cluster.info(), await self.presets(wanted), self.floor)
        stored = await self._writer.run(partial(store.replace, sandbox_id=sandbox_id, network=network))
        if stored is None:
            guard.running(self._reader, project_id, sandbox_id)
            raise SandboxGone("the sandbox is ending", details={"sandbox_id": sandbox_id})
        self._untold[sandbox_id] = max(stored.generation, self._untold.get(sandbox_id, 0))
        faultpoints.reach("server.network.row_written")
        try:
            found = await self._tell(target.node_id, target.ref, stored, request_id)
        except NodeUnavailable as error:
            raise NodeUnavailable(
                error.message,
                hint="the change is stored and comes into force when the node is back; a repeat tells",
                details=error.details,
            ) from error
        faultpoints.reach("server.network.node_answered")
        return _shown(found)

    async def presets(self, wanted: Network) -> Presets:
        """What those that it may name would open; the node reads its package configuration for the answer. Whatever
        else `judge` needs is there then, so that it takes no time."""
        if not isinstance(wanted, NetworkPolicy):
            return {}
        if any(hosts.WILDCARD in str(rule) for rule in wanted.allow):
            await asyncio.to_thread(hosts.load)
        if not wanted.presets:
            return {}
        answer = await self._cluster.call(None, "node.presets", {"names": wanted.presets})
        presets: Presets = answer["presets"]
        return presets

    async def settle(self, rows: Iterable[Any], on_node: dict[str, dict[str, Any]]) -> None:
        """Part of each comparison with the node's list, which was taken before the rows were read."""
        rows = list(rows)
        if len(self._untold) > MOST_UNTOLD:  # of sandboxes that ended before the node could be told
            living = {row.id for row in rows}
            self._untold = {id: generation for id, generation in self._untold.items() if id in living}
        for row in rows:
            item = on_node.get(row.id)
            if row.state != State.RUNNING or item is None or item.get("state") != State.RUNNING:
                continue
            held = item.get("network_generation")  # an older node's list has none
            if held is None or "quarantined_at" in item:
                continue
            if held == row.network_generation and row.id not in self._untold:
                continue
            ref = {"sandbox_id": row.id, "generation": row.generation}
            try:
                await self._settle(row.node_id, ref, held, row.network_generation)
            except BellglassError as error:
                log.warning("the network of a sandbox is not settled", sandbox=row.id, reason=error.message)

    async def _settle(self, node_id: str | None, ref: Ref, held: int, wanted: int) -> None:
        sandbox_id = ref["sandbox_id"]
        if held < wanted or sandbox_id in self._untold:
            stored = await self._reader.in_thread(store.find, sandbox_id)
            if stored is not None:
                await self._tell(node_id, ref, stored, None)
        else:  # this database is an older copy
            found = await self._cluster.call(node_id, "sandbox.network", ref)
            stored = Stored(read_network(found["network"]), found["generation"])
            await self._writer.run(partial(store.supersede, sandbox_id=sandbox_id, held=wanted, stored=stored))

    async def _tell(self, node_id: str | None, ref: Ref, stored: Stored, request_id: str | None) -> dict[str, Any]:
        """Returns once it is in force, or what came behind it. Raises NodeUnavailable."""
        sandbox_id = ref["sandbox_id"]
        for _ in range(MOST_TELLS):
            found = await self._push(node_id, ref, stored, request_id)
            if _is_in_force(stored, found):
                if self._untold.get(sandbox_id) == stored.generation:
                    del self._untold[sandbox_id]
                return found
            newest = None
            if self._untold.get(sandbox_id) == stored.generation:
                # The node has another history of changes, which a restored database does not know: behind all of it.
                behind = Stored(stored.network, max(found["generation"], stored.generation) + 1)
                newest = await self._writer.run(
                    partial(store.supersede, sandbox_id=sandbox_id, held=stored.generation, stored=behind)
                )
                if newest is not None:
                    self._untold[sandbox_id] = newest.generation
            newest = newest or await self._reader.in_thread(store.find, sandbox_id)
            if newest is None or _is_in_force(newest, found):
                return found
            if newest.generation < found["generation"] and sandbox_id not in self._untold:
                return found
            stored = newest
        raise NodeUnavailable("the node goes on with another network", hint="a repeat tells")

    async def _push(self, node_id: str | None, ref: Ref, stored: Stored, request_id: str | None) -> dict[str, Any]:
        params = {**ref, "network": _plain(stored.network), "network_generation": stored.generation}
        return await self._cluster.call(node_id, "sandbox.set_network", params, request_id=request_id)


def _is_in_force(stored: Stored, found: dict[str, Any]) -> bool:
    """`found`: the node's word."""
    same = _plain(read_network(found["network"])) == _plain(stored.network)
    return bool(found["generation"] == stored.generation and same)


def _plain(network: Network) -> Any:
    return network.to_json() if isinstance(network, Record) else network


def _shown(found: dict[str, Any]) -> SandboxNetwork:
    rules = [ResolvedRule.from_json(rule) for rule in found["resolved"]]
    traffic = NetworkTraffic.from_json(found["traffic"]) if found.get("traffic") else None
    return SandboxNetwork(
        network=read_network(found["network"]), generation=found["generation"], resolved=rules, traffic=traffic
    )
