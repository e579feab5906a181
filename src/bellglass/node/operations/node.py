"""node.info and the journal."""

from __future__ import annotations

import asyncio
import os

from bellglass import __version__, faultpoints
from bellglass.errors import Conflict, NotSupported
from bellglass.link import LinkStream
from bellglass.node import templates
from bellglass.node.app import Node
from bellglass.node.drivers.base import ReadsLxcfs
from bellglass.node.journal import MOST_EVENTS
from bellglass.node.params import Params

KEEPALIVE_S = 15.0


async def info(node: Node, params: Params, stream: LinkStream) -> None:
    result = {
        "node_id": node.node_id,
        "version": __version__,
        "tiers": [report.to_json() for report in await node.tiers()],
        "templates": [templates.info(template).to_json() for template in node.templates.installed()],
        "capacity": node.sandboxes.admission.report(),
        "disk": {**node.disk.report(), "settled": node.flushing.is_settled or not node.disk.is_low},
        "pids": {"node": os.getpid(), "helper": node.helper_pid()},
        "pool_members": len(node.sandboxes.pools.members),
        "quarantined": sum(
            row.quarantined_at_unix is not None and (row.state == "running" or row.disk_kept)
            for row in node.sandboxes.rows()
        ),
        "capabilities": {
            "most_cpus": node.sandboxes.admission.most_cpus(),
            "driver": node.driver.name,
            "network": node.sandboxes.egress is not None,
        },
    }
    await stream.send_head({"result": result}, end=True)


async def wait_reclaimed(node: Node, params: Params, stream: LinkStream) -> None:
    """Answers once everything that has ended is given back; Conflict when that takes longer than `timeout_s`."""
    timeout_s = params.integer("timeout_s", 60, least=1, most=600)
    try:
        async with asyncio.timeout(timeout_s):
            await node.sandboxes.wait_reclaimed()
    except TimeoutError:
        raise Conflict(f"sandboxes are still being given back after {timeout_s} s", hint="see the node's log") from None
    await stream.send_head({"result": {}}, end=True)


async def renew_lxcfs(node: Node, params: Params, stream: LinkStream) -> None:
    """lxcfs was started anew: running machines are to read from that one. Raises SandboxFailed naming those that
    can't, NotSupported by a driver that has none."""
    if not isinstance(node.driver, ReadsLxcfs):
        raise NotSupported(f"machines of the {node.driver.name} driver don't read from lxcfs")
    await stream.send_head({"result": {"renewed": await node.driver.renew_lxcfs()}}, end=True)


async def follow_journal(node: Node, params: Params, stream: LinkStream) -> None:
    """Events behind `after` as JSON lines, for ever; an empty line in each 15 s without one."""
    after = params.integer("after", 0)
    await stream.send_head({"result": {}})
    while True:
        grown = node.journal.grown()
        if events := await node.journal.events(after):
            after = events[-1].seq
            await stream.send(b"".join(event.line() for event in events))
            if len(events) == MOST_EVENTS:
                continue
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                await grown.wait()
        except TimeoutError:
            await stream.send(b"\n")


async def acknowledge_journal(node: Node, params: Params, stream: LinkStream) -> None:
    await node.journal.acknowledge(params.integer("through"))
    faultpoints.reach("node.journal.acknowledged")
    await stream.send_head({"result": {}}, end=True)
