"""sandbox.set_network, sandbox.network and node.presets."""

from __future__ import annotations

from typing import Any

from bellglass.errors import InvalidRequest
from bellglass.link import LinkStream
from bellglass.model import Network, SandboxSpec, read_network
from bellglass.node.app import Node
from bellglass.node.live import LiveSandbox
from bellglass.node.net import networks
from bellglass.node.params import Params


def _live(node: Node, params: Params) -> LiveSandbox:
    return node.sandboxes.live(params.text("sandbox_id", limit=64), params.integer("generation"))


async def set_network(node: Node, params: Params, stream: LinkStream) -> None:
    """Answers with the network in force: a later change may have come before this one."""
    live, network = _live(node, params), network_of(params.raw("network"))
    row = await networks.set_network(node.sandboxes, live, network, params.integer("network_generation", least=1))
    await stream.send_head({"result": await networks.shown(node.sandboxes, SandboxSpec.from_json(row.spec))}, end=True)


async def get(node: Node, params: Params, stream: LinkStream) -> None:
    await stream.send_head({"result": await networks.shown(node.sandboxes, _live(node, params).spec)}, end=True)


async def presets(node: Node, params: Params, stream: LinkStream) -> None:
    found = await node.sandboxes.presets.all()
    await stream.send_head({"result": {"presets": {name: one.to_json() for name, one in found.items()}}}, end=True)


def network_of(value: Any) -> Network:
    """Raises InvalidRequest."""
    if value not in ("deny", "open") and not isinstance(value, dict):
        raise InvalidRequest(f"network: {str(value)[:40]!r} is no network", details={"field": "network"})
    try:
        return read_network(value)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"network: it is none: {error}", details={"field": "network"}) from None
