"""pool.apply, list, take, release and drain."""

from __future__ import annotations

from bellglass.errors import InvalidRequest
from bellglass.link import LinkStream
from bellglass.node.app import Node
from bellglass.node.operations.sandboxes import spec_of
from bellglass.node.params import Params
from bellglass.node.pools.wanted import WantedPool


async def apply(node: Node, params: Params, stream: LinkStream) -> None:
    """All pools that are to be; members of others are given up. `anew`: the server has just connected."""
    pools = params.raw("pools")
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        raise InvalidRequest("pools: is not a list of objects", details={"field": "pools"})
    wanted = [WantedPool.from_json(pool) for pool in pools]
    if params.flag("anew"):
        node.sandboxes.pools.release_all()
    node.sandboxes.pools.apply(wanted)
    await stream.send_head({"result": {}}, end=True)


async def list_all(node: Node, params: Params, stream: LinkStream) -> None:
    await stream.send_head({"result": {"pools": node.sandboxes.pools.report()}}, end=True)


async def take(node: Node, params: Params, stream: LinkStream) -> None:
    """Promises a member to a create: its id, or null. It lapses unless `sandbox.create` comes with that id."""
    spec = spec_of(node, Params(params.mapping("spec")))
    sandbox_id = await node.sandboxes.pools.take(spec, has_inputs=params.flag("has_inputs"))
    await stream.send_head({"result": {"sandbox_id": sandbox_id}}, end=True)


async def release(node: Node, params: Params, stream: LinkStream) -> None:
    """A promise is not redeemed. `discard`: the member is of no use, its id is taken."""
    node.sandboxes.pools.release(params.text("sandbox_id", limit=64), discard=params.flag("discard"))
    await stream.send_head({"result": {}}, end=True)


async def drain(node: Node, params: Params, stream: LinkStream) -> None:
    """No pools until the next pool.apply; answers when no member is left."""
    await node.sandboxes.pools.drain()
    await stream.send_head({"result": {}}, end=True)
