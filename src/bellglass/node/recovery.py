"""Settling what an earlier node left: running sandboxes go on, half-made and half-ended ones are finished."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from bellglass.model import SandboxSpec, TerminationReason
from bellglass.node import ending, inputs
from bellglass.node.drivers.base import Handle
from bellglass.node.journal import SandboxRow
from bellglass.node.sandboxes import Sandboxes

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
log = logging.getLogger("bellglass.sandboxes")


async def recover(node: Sandboxes) -> None:
    """Before the node serves."""
    boot_id = BOOT_ID.read_text().strip()
    before = await node.journal.meta("boot_id", boot_id)
    rebooted = before is not None and before != boot_id
    node.row_table.update({row.id: row for row in await node.journal.sandboxes()})
    await node.forget_old()
    await _remove_strays(node)
    for row in node.rows():
        try:
            await _recover(node, row, rebooted=rebooted)
        except Exception:  # one broken sandbox must not keep the others from being served
            log.exception("sandbox %s could not be recovered", row.id)


async def _remove_strays(node: Sandboxes) -> None:
    """Records, logs and inputs of sandboxes that the journal does not know."""
    for sandbox_id in node.records.sandbox_ids() | await asyncio.to_thread(node.folders):
        if sandbox_id not in node.row_table:
            await node.forget_logs(sandbox_id)
            await asyncio.to_thread(inputs.remove, node.inputs_folder(sandbox_id))


async def _recover(node: Sandboxes, row: SandboxRow, *, rebooted: bool) -> None:
    if not row.reclaimed:  # it holds what it was granted until it is given back
        node.admission.grant(row.id, SandboxSpec.from_json(row.spec), cpu_ids=row.cpu_ids)
    if row.state == "ended":
        if not row.reclaimed:
            node.spawn(ending.reclaim(node, row, None), f"reclaim:{row.id}")
        return
    handle = None
    if row.driver_state is not None and not rebooted:
        handle = await node.driver.recover(row.id, row.driver_state)
    if row.state == "running" and handle is not None:
        await _take_over(node, row, handle)
        return
    if row.state == "creating":
        row = row.ending(str(TerminationReason.FAILED), "the node stopped while it was being created")
    elif row.state == "running":
        why = "the host was restarted" if rebooted else "its machine was gone when the node started"
        row = row.ending(str(TerminationReason.NODE_LOST), why)
    if handle is not None:
        await handle.destroy()
    for stored in node.records.running(row.id):
        node.records.finish(row.id, stored.id, stored.record | {"state": "lost", "ended_at": row.ended_at})
    node.row_table[row.id] = row
    node.spawn(ending.settle(node, row, handle), f"reclaim:{row.id}")


async def _take_over(node: Sandboxes, row: SandboxRow, handle: Handle) -> None:
    spec = SandboxSpec.from_json(row.spec)
    live = node.make_live(row, spec, handle)
    live.executions.adopt()
    node.live_table[row.id] = live
    live.start()
    live.watch_machine()
    assert row.expires_at_unix is not None
    live.set_clocks(expires_at_unix=row.expires_at_unix, idle_timeout_s=row.idle_timeout_s)
    log.info("sandbox %s goes on", row.id)
