"""Machines that the journal says nothing of, since it was lost or is an older copy.

They go into quarantine like those that the server does not know. Their executions have no records, so nobody can take
them over: one that is released ends as `node_lost`, and its disk is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from bellglass.errors import NotFound
from bellglass.model import SandboxSpec, TerminationReason
from bellglass.node import ending
from bellglass.node.drivers.base import FoundMachine
from bellglass.node.journal import SandboxRow

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

WHY = "its node's journal knows nothing of it"
NOT_TAKEN_OVER = "it could not be taken over when its node started"
LIFETIME_S = 600.0
log = logging.getLogger("bellglass.sandboxes")


def stands_alone(node: Sandboxes, row: SandboxRow) -> bool:
    """Whether it runs, and nobody is linked with its agent."""
    return bool(row.about.get("found")) and row.state == "running" and row.id not in node.live_table


async def take_in(node: Sandboxes, known: set[str]) -> None:
    """Once the journal's own rows are settled."""
    for machine in await node.driver.find(known):
        row = _row(node, machine)
        if machine.groups is not None:
            await asyncio.to_thread(machine.groups.freeze, frozen=True)
            node.admission.grant(row.id, SandboxSpec.from_json(row.spec), cpu_ids=row.cpu_ids)
        await node.journal.put(row)
        node.row_table[row.id] = row
        if row.disk_kept:
            node.kept.recover(row)
        log.warning("sandbox %s is in quarantine: %s", row.id, WHY)


async def end(node: Sandboxes, row: SandboxRow, reason: TerminationReason) -> SandboxRow:
    """Of one that nobody is linked with: every process is dead when this returns. Its lock is held."""
    row = row.ending(str(reason), WHY if row.about.get("found") else NOT_TAKEN_OVER)
    await node.journal.put(row)
    node.row_table[row.id] = row
    await (node.driver.keep_disk if reason == TerminationReason.NODE_LOST else node.driver.reclaim_leftovers)(row.id)
    node.spawn(ending.settle(node, row, None), f"reclaim:{row.id}")
    return row


def _row(node: Sandboxes, machine: FoundMachine) -> SandboxRow:
    numbers, running = machine.spec, machine.groups is not None
    name, digest = str(numbers["template_name"]), str(numbers["template_digest"])
    try:
        template = node.templates.find(name, digest)
        user, workdir = template.user, template.workdir
    except NotFound:
        user, workdir = "root", "/"
    spec = SandboxSpec(
        template=name,
        template_digest=digest,
        env={},
        user=user,
        workdir=workdir,
        cpus=float(numbers["cpus"]),
        memory_bytes=int(numbers["memory_bytes"]),
        disk_bytes=int(numbers["disk_bytes"]),
        inodes=int(numbers["inodes"]),
        pids=int(numbers["pids"]),
        lifetime_s=LIFETIME_S,
        idle_timeout_s=None,
        tier=node.driver.tier,
        network="deny",
        identity=False,  # perhaps it was to have none
    )
    row = SandboxRow(
        id=machine.sandbox_id,
        generation=1,
        project_id="",
        spec=spec.to_json(),
        driver=node.driver.name,
        state="running",
        cpu_ids=tuple(numbers["cpu_ids"]),
        about={"found": True},
        quarantined_at_unix=time.time(),
    )
    if running:
        return row
    ended = row.ending(str(TerminationReason.NODE_LOST), WHY)
    return replace(ended, state="ended", reclaimed=True, disk_kept=True)
