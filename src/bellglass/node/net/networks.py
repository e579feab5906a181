"""The network of a sandbox: journalled as it was wished, handed to proxy and resolver as a policy.

A change has a generation. One that is older than what is journalled is passed over, so whatever order changes arrive
in, the last one stays; one that was journalled and not handed on is handed on again by the node that comes after.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from bellglass import faultpoints
from bellglass.errors import NodeUnavailable, NotFound, NotSupported, SandboxFailed
from bellglass.link.credential import Caller
from bellglass.model import Network, NetworkPolicy, SandboxSpec
from bellglass.node import sandboxes
from bellglass.node.drivers.base import HasNetwork
from bellglass.node.journal import SandboxRow

if TYPE_CHECKING:
    from bellglass.node.live import LiveSandbox
    from bellglass.node.net.presets import Preset
    from bellglass.node.sandboxes import Sandboxes

APPLY_S = 20.0
"""How long a change waits for a proxy or resolver that is being started again."""
log = logging.getLogger("bellglass.network")


async def set_network(node: Sandboxes, live: LiveSandbox, network: Network, generation: int) -> SandboxRow:
    """Returns when the newest network that is known is in force: the row has it. Raises SandboxGone, NotSupported,
    NodeUnavailable (proxy or resolver are down: then nothing passes, and they get it when they are back)."""
    async with node.lock(live.sandbox_id):
        row = node.row_table[live.sandbox_id]
        if row.state != "running":
            raise sandboxes.gone(row)
        check(node, network)
        spec = SandboxSpec.from_json(row.spec)
        if generation > spec.network_generation:
            spec = replace(spec, network=network, network_generation=generation)
            row = await _journal(node, live, row, spec)
            faultpoints.reach("node.network.journaled")
    # Without the lock, so that no end waits for a proxy that is away. Also where it was known: an earlier try may have
    # come to nothing behind the journal.
    await push(node, live.sandbox_id, spec)
    faultpoints.reach("node.network.applied")
    row = node.row(live.sandbox_id, live.generation)
    if row.state != "running":
        raise sandboxes.gone(row)
    return row


async def close(node: Sandboxes, live: LiveSandbox, generation: int) -> None:
    """What should be from `generation` on is nothing that this node knows: nothing passes in its place. The generation
    stays as it is, so that the server, which compares it, tells the node that comes after. Raises SandboxGone,
    NodeUnavailable."""
    async with node.lock(live.sandbox_id):
        row = node.row_table[live.sandbox_id]
        if row.state != "running":
            raise sandboxes.gone(row)
        spec = SandboxSpec.from_json(row.spec)
        if generation <= spec.network_generation:
            return
        if spec.network != "deny":
            await _journal(node, live, row, replace(spec, network="deny"))
            log.error("sandbox %s has no network: the node does not know generation %d", live.sandbox_id, generation)
    await push(node, live.sandbox_id, live.spec)


async def _journal(node: Sandboxes, live: LiveSandbox, row: SandboxRow, spec: SandboxSpec) -> SandboxRow:
    row = replace(row, spec=spec.to_json())
    await node.journal.put(row)
    node.row_table[row.id] = row
    live.spec = spec
    return row


def check(node: Sandboxes, network: Network) -> None:
    """Raises NotSupported for what this node's sandboxes can't have."""
    if node.egress is None and network != "deny":
        raise NotSupported(
            "network: sandboxes of this node have loopback only", hint='it can be "deny"', details={"field": "network"}
        )


async def attach(node: Sandboxes, live: LiveSandbox) -> None:
    """From now on the machine has the network of its spec; nothing where it can have none. Raises SandboxFailed."""
    if node.egress is None or not isinstance(live.handle, HasNetwork):
        return
    policy = await node.presets.document(live.spec.network)
    live.on_close = partial(_detach, node)
    if node.identities is not None and live.spec.identity:
        await node.identities.attach(Caller(live.sandbox_id, live.generation), live.handle)
    await node.egress.attach(live.sandbox_id, live.handle, policy, live.spec.network_generation)


async def _detach(node: Sandboxes, sandbox_id: str) -> None:
    if node.identities is not None:
        await node.identities.detach(sandbox_id)
    if node.egress is not None:
        await node.egress.detach(sandbox_id)


async def claimed(node: Sandboxes, sandbox_id: str, spec: SandboxSpec) -> None:
    """A pool's machine gets what its claim asks for, before anybody hears of the claim. Raises SandboxFailed."""
    if node.identities is not None and not spec.identity:
        await node.identities.detach(sandbox_id)
    if spec.network != "deny":  # which it has
        await open_claimed(node, sandbox_id, spec)


async def push(node: Sandboxes, sandbox_id: str, spec: SandboxSpec) -> None:
    """Raises NodeUnavailable."""
    if node.egress is None:
        return
    policy = await node.presets.document(spec.network)
    live = node.live_table.get(sandbox_id)
    if live is not None and live.spec.network_generation == spec.network_generation:
        policy = await node.presets.document(live.spec.network)  # it may have been closed while the tools were asked
    try:
        async with asyncio.timeout(APPLY_S):
            await node.egress.set_policy(sandbox_id, policy, spec.network_generation)
    except NotFound:  # it is ending
        return
    except TimeoutError:
        raise NodeUnavailable(
            "the network could not be changed: proxy or resolver don't answer",
            hint="until they are back nothing passes, and then it is changed; `bellglass status` shows them",
        ) from None


class Renewed(NamedTuple):
    presets: dict[str, Preset]
    """Those that running sandboxes have."""
    sandboxes: list[str]
    """Whose rules have changed by it."""


async def renew_presets(node: Sandboxes) -> Renewed:
    """The tools of this host are set up anew: running sandboxes with presets follow. Raises NodeUnavailable when proxy
    or resolver are down: then nothing passes, and they get it when they are back."""
    wished = {live: live.spec.network for live in node.running()}
    having = {live: network for live, network in wished.items() if isinstance(network, NetworkPolicy)}
    before = {live: await node.presets.document(network) for live, network in having.items()}
    found = await node.presets.renew(sorted({name for network in having.values() for name in network.presets}))
    changed = [live for live, network in having.items() if await node.presets.document(network) != before[live]]
    # Each has its own wait for a proxy that is away, and none keeps the others from theirs.
    done = await asyncio.gather(*(push(node, live.sandbox_id, live.spec) for live in changed), return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return Renewed(found, [live.sandbox_id for live in changed])


async def open_claimed(node: Sandboxes, sandbox_id: str, spec: SandboxSpec) -> None:
    """A pool's machine gets the network of who claims it, before anybody hears of the claim. Raises SandboxFailed."""
    try:
        await push(node, sandbox_id, spec)
    except NodeUnavailable as error:
        raise SandboxFailed(f"its network could not be opened: {error.message}", hint="create it again") from error


async def shown(node: Sandboxes, spec: SandboxSpec) -> dict[str, Any]:
    """For the server: as wished, and the rules of it."""
    policy = await node.presets.document(spec.network)
    plain = spec.to_json()
    return {"network": plain["network"], "generation": spec.network_generation, "resolved": policy["rules"]}
