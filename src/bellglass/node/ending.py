"""Ending a sandbox: intent, death of every process, confirmation, then giving back what it had."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from bellglass import faultpoints
from bellglass.errors import NoCapacity
from bellglass.model import TerminationReason
from bellglass.node import found, inputs, kept, sandboxes
from bellglass.node.drivers.base import Handle
from bellglass.node.journal import SandboxRow
from bellglass.node.live import LiveSandbox

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

RETRIES_S = (0.2, 1.0, 5.0, 30.0, 60.0, 300.0)
"""Pauses before what must be done is tried again; the last one for ever."""
log = logging.getLogger("bellglass.sandboxes")


async def delete(node: Sandboxes, sandbox_id: str, generation: int) -> str | None:
    """See Sandboxes.delete."""
    async with node.lock(sandbox_id):
        row = node.row_table.get(sandbox_id)
        if row is None or row.generation != generation:
            return None
        if row.state == "running" and sandbox_id not in node.live_table:
            row = await found.end(node, row, TerminationReason.USER)
        elif row.state == "running":
            row = await _end(node, row, TerminationReason.USER, None)
        elif row.state == "ending":
            await _die(node, row)  # an earlier end did not get through
        else:
            await node.kept.drop(row)
        try:
            await node.forget_logs(sandbox_id)
        except NoCapacity:
            if node.row_table[sandbox_id].reclaimed:
                raise
            log.exception("the records of %s are forgotten once its disk is given back", sandbox_id)
        faultpoints.reach("node.delete.answering")
        return row.ended_at


async def end_by_itself(node: Sandboxes, live: LiveSandbox, reason: TerminationReason, message: str | None) -> None:
    """Whoever noticed notices once, and nobody waits for an answer: so a failure is tried again here."""

    async def end() -> None:
        async with node.lock(live.sandbox_id):
            row = node.row_table.get(live.sandbox_id)
            if row is None:
                return
            if row.state == "running" and node.live_table.get(live.sandbox_id) is live:
                log.info("sandbox %s ends: %s %s", row.id, reason, message or "")
                await _end(node, row, reason, message)
            elif row.state == "ending":
                await _die(node, row)

    await until_done(f"ending sandbox {live.sandbox_id}", end)


async def _end(node: Sandboxes, row: SandboxRow, reason: TerminationReason, message: str | None) -> SandboxRow:
    """Intent and death; the confirmation and the reclaiming go on behind the answer."""
    row = row.ending(str(reason), message)
    # Before anything of it shows: an intent that could not be stored is no intent. But for a full disk: the end makes
    # room. A node that is killed in between will say `node_lost`.
    try:
        await node.journal.put(row)
    except NoCapacity:
        log.exception("the end of sandbox %s can't be stored; it is killed all the same", row.id)
    faultpoints.reach("node.end.journaled")
    node.row_table[row.id] = row
    node.dying_table[row.id] = node.live_table.pop(row.id)
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
    faultpoints.reach("node.end.closed")
    await live.handle.destroy()
    faultpoints.reach("node.end.dead")
    del node.dying_table[row.id]
    node.spawn(settle(node, row, live.handle), f"reclaim:{row.id}")


async def settle(node: Sandboxes, row: SandboxRow, handle: Handle | None) -> None:
    """An `ending` one whose processes are dead becomes `ended`, then `reclaimed`. Without a handle the driver looks for
    what is left by the id."""
    row = replace(row, state="ended", driver_state=None)
    ended = {"reason": row.reason, "ended_at": row.ended_at, "message": row.message}

    async def confirm() -> None:
        try:
            await node.journal.put(row, ("sandbox.ended", ended))
        except NoCapacity:
            if not kept.is_kept(row):
                await _free_disk(node, row, handle)  # so that the next attempt has room
            raise

    await until_done(f"confirming the end of sandbox {row.id}", confirm)
    faultpoints.reach("node.end.confirmed")
    node.row_table[row.id] = row
    await reclaim(node, row, handle)


async def reclaim(node: Sandboxes, row: SandboxRow, handle: Handle | None) -> None:
    await until_done(f"reclaiming sandbox {row.id}", lambda: _reclaim(node, row, handle))


async def finish(node: Sandboxes, row: SandboxRow, handle: Handle | None, lock: asyncio.Lock) -> None:
    """What an earlier node had begun to end. `lock` is the sandbox's and held: until every process is dead, nobody may
    be told that they are."""
    try:
        if handle is not None:
            await until_done(f"killing sandbox {row.id}", handle.destroy)
    finally:
        lock.release()
    await settle(node, row, handle)


async def until_done(what: str, act: Callable[[], Awaitable[None]]) -> None:
    pauses = iter(RETRIES_S)
    while True:
        try:
            await act()
            return
        except Exception:  # nobody waits for it; a node that is restarted meanwhile goes on from its journal
            pause_s = next(pauses, RETRIES_S[-1])
            log.exception("%s failed; again in %g s", what, pause_s)
            await asyncio.sleep(pause_s)


async def _free_disk(node: Sandboxes, row: SandboxRow, handle: Handle | None) -> None:
    if handle is not None:
        await handle.reclaim()
    else:
        await node.driver.reclaim_leftovers(row.id)


async def _reclaim(node: Sandboxes, row: SandboxRow, handle: Handle | None) -> None:
    node.pools.ended(row.id)
    if kept.is_kept(row):
        if await node.kept.keep(row):
            return
        row = node.row_table.get(row.id, row)
    await _free_disk(node, row, handle)
    faultpoints.reach("node.end.reclaimed")
    await inputs.remove(node.inputs_folder(row.id))
    faultpoints.reach("node.end.inputs_removed")
    node.admission.give_back(row.id)
    if row.reason == TerminationReason.USER:
        await node.forget_logs(row.id)
    faultpoints.reach("node.end.logs_forgotten")
    row = replace(row, reclaimed=True)
    await node.journal.put(row, ("sandbox.reclaimed", {}))
    faultpoints.reach("node.end.recorded")
    node.row_table[row.id] = row
