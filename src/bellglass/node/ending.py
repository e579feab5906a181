"""Ending a sandbox: intent, death of every process, confirmation, then giving back what it had."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from bellglass.model import TerminationReason
from bellglass.node import inputs, sandboxes
from bellglass.node.drivers.base import Handle
from bellglass.node.journal import SandboxRow
from bellglass.node.live import LiveSandbox

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

RECLAIM_RETRIES_S = (1.0, 5.0, 30.0, 60.0, 300.0)
log = logging.getLogger("bellglass.sandboxes")


async def delete(node: Sandboxes, sandbox_id: str, generation: int) -> str | None:
    """See Sandboxes.delete."""
    async with node.lock(sandbox_id):
        row = node.row_table.get(sandbox_id)
        if row is None or row.generation != generation:
            return None
        if row.state == "running":
            row = await _end(node, row, TerminationReason.USER, None)
        elif row.state == "ending":
            await _die(node, row)  # an earlier end did not get through
        await node.forget_logs(sandbox_id)
        return row.ended_at


async def end_by_itself(node: Sandboxes, live: LiveSandbox, reason: TerminationReason, message: str | None) -> None:
    async with node.lock(live.sandbox_id):
        row = node.row_table.get(live.sandbox_id)
        if row is not None and row.state == "running" and node.live_table.get(live.sandbox_id) is live:
            log.info("sandbox %s ends: %s %s", row.id, reason, message or "")
            await _end(node, row, reason, message)


async def _end(node: Sandboxes, row: SandboxRow, reason: TerminationReason, message: str | None) -> SandboxRow:
    """Intent and death; the confirmation and the reclaiming go on behind the answer."""
    row = row.ending(str(reason), message)
    node.row_table[row.id] = row
    node.dying_table[row.id] = node.live_table.pop(row.id)
    await node.journal.put(row)
    await _die(node, row)
    return row


async def _die(node: Sandboxes, row: SandboxRow) -> None:
    """Every process of an `ending` one is dead when this returns. A failure leaves it `ending`: the next delete, or the
    next start of the node, tries again."""
    live = node.dying_table.get(row.id)
    if live is None:
        return  # dead already, being settled
    # First, so that whoever waits hears why, and not that the agent is gone.
    await live.close(sandboxes.gone(row))
    await live.handle.destroy()
    del node.dying_table[row.id]
    node.spawn(settle(node, row, live.handle), f"reclaim:{row.id}")


async def settle(node: Sandboxes, row: SandboxRow, handle: Handle | None) -> None:
    """An `ending` one whose processes are dead becomes `ended`, then `reclaimed`. Without a handle the driver looks for
    what is left by the id."""
    row = replace(row, state="ended", driver_state=None)
    ended = {"reason": row.reason, "ended_at": row.ended_at, "message": row.message}
    await node.journal.put(row, ("sandbox.ended", ended))
    node.row_table[row.id] = row
    await reclaim(node, row, handle)


async def reclaim(node: Sandboxes, row: SandboxRow, handle: Handle | None) -> None:
    for pause_s in RECLAIM_RETRIES_S:
        try:
            await _reclaim(node, row, handle)
            return
        except Exception:  # what is left is tried again, at last by the next start of the node
            log.exception("reclaiming sandbox %s failed; again in %g s", row.id, pause_s)
            await asyncio.sleep(pause_s)


async def _reclaim(node: Sandboxes, row: SandboxRow, handle: Handle | None) -> None:
    if handle is not None:
        await handle.reclaim()
    else:
        await node.driver.reclaim_leftovers(row.id)
    await asyncio.to_thread(inputs.remove, node.inputs_folder(row.id))
    node.admission.give_back(row.id)
    if row.reason == TerminationReason.USER:
        await node.forget_logs(row.id)
    row = replace(row, reclaimed=True)
    await node.journal.put(row, ("sandbox.reclaimed", {}))
    node.row_table[row.id] = row
