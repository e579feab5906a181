"""sandbox.set_network, sandbox.network, node.presets and node.renew_presets."""

from __future__ import annotations

from typing import Any

from bellglass.errors import InvalidRequest, NotSupported
from bellglass.link import LinkStream
from bellglass.model import Network, SandboxSpec, check_known, read_network
from bellglass.node.app import Node
from bellglass.node.live import LiveSandbox
from bellglass.node.net import networks
from bellglass.node.net.presets import PRESETS
from bellglass.node.params import Params


def _live(node: Node, params: Params) -> LiveSandbox:
    return node.sandboxes.live(params.text("sandbox_id", limit=64), params.integer("generation"))


async def set_network(node: Node, params: Params, stream: LinkStream) -> None:
    """Answers with the network in force: a later change may have come before this one."""
    live, generation = _live(node, params), params.integer("network_generation", least=1)
    try:
        network = network_of(params.raw("network"))
    except NotSupported:
        await networks.close(node.sandboxes, live, generation)
        raise
    row = await networks.set_network(node.sandboxes, live, network, generation)
    await stream.send_head({"result": await networks.shown(node.sandboxes, SandboxSpec.from_json(row.spec))}, end=True)


async def get(node: Node, params: Params, stream: LinkStream) -> None:
    live, egress = _live(node, params), node.sandboxes.egress
    traffic = None if egress is None else await egress.traffic(live.sandbox_id)
    result = {**await networks.shown(node.sandboxes, live.spec), "traffic": traffic}
    await stream.send_head({"result": result}, end=True)


async def presets(node: Node, params: Params, stream: LinkStream) -> None:
    """Every preset by its name, and of those in `names` what it opens."""
    names = params.raw("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest("names: is no list of names", details={"field": "names"})
    found = await node.sandboxes.presets.find(names)
    told = {name: found[name].to_json() if name in found else {} for name in PRESETS}
    await stream.send_head({"result": {"presets": told}}, end=True)


async def renew_presets(node: Node, params: Params, stream: LinkStream) -> None:
    """Those that running sandboxes have, and the ids of the sandboxes whose rules changed."""
    renewed = await networks.renew_presets(node.sandboxes)
    told = {name: preset.to_json() for name, preset in renewed.presets.items()}
    await stream.send_head({"result": {"presets": told, "sandboxes": renewed.sandboxes}}, end=True)


def network_of(value: Any) -> Network:
    """Raises InvalidRequest, and NotSupported for what a later release may say and this one does not know."""
    if value not in ("deny", "open") and not isinstance(value, dict):
        raise InvalidRequest(f"network: {str(value)[:40]!r} is no network", details={"field": "network"})
    try:
        if isinstance(value, dict):
            check_known(value)
    except ValueError as error:
        raise NotSupported(
            f"network: the node does not know such a one ({error}), and may be of an earlier release than the server",
            hint="run both of one release: bellglass down, then up; until then nothing passes",
            details={"field": "network"},
        ) from None
    try:
        return read_network(value)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"network: it is none: {error}", details={"field": "network"}) from None
