"""Settling what an earlier node left: running sandboxes go on, half-made and half-ended ones are finished."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from bellglass import faultpoints
from bellglass.model import SandboxSpec, TerminationReason
from bellglass.node import ending, found, inputs, quarantine
from bellglass.node.drivers.base import Handle
from bellglass.node.executions import record
from bellglass.node.journal import POOL_STATES, SandboxRow
from bellglass.node.net import networks
from bellglass.node.sandboxes import Sandboxes

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
log = logging.getLogger("bellglass.sandboxes")


async def recover(node: Sandboxes, boot_id_file: Path) -> None:
    """Before the node serves. Another boot id than the last one: the host was restarted, and nothing runs on."""
    boot_id = boot_id_file.read_text().strip()
    before = await node.journal.meta("boot_id")
    rebooted = before is not None and before != boot_id
    rows = await node.journal.sandboxes()
    node.row_table.update({row.id: row for row in rows if row.state not in POOL_STATES})
    faultpoints.reach("node.recover.read")
    await node.forget_old()
    await _remove_strays(node)
    await asyncio.gather(*(_recover_or_log(node, row, rebooted=rebooted) for row in node.rows()))
    await node.pools.recover([row for row in rows if row.state in POOL_STATES], rebooted=rebooted)
    await found.take_in(node, {row.id for row in rows} | set(node.row_table))
    # Last: a node that dies above finds out again that the host was restarted.
    await node.journal.meta("boot_id", boot_id)


async def _recover_or_log(node: Sandboxes, row: SandboxRow, *, rebooted: bool) -> None:
    try:
        await _recover(node, row, rebooted=rebooted)
    except Exception:  # one broken sandbox must not keep the others from being served
        log.exception("sandbox %s could not be recovered", row.id)


async def _remove_strays(node: Sandboxes) -> None:
    """Records, logs and inputs of sandboxes that the journal does not know."""
    for sandbox_id in node.records.sandbox_ids() | await asyncio.to_thread(node.folders):
        if sandbox_id not in node.row_table:
            await node.forget_logs(sandbox_id)
            await inputs.remove(node.inputs_folder(sandbox_id))


async def _recover(node: Sandboxes, row: SandboxRow, *, rebooted: bool) -> None:
    if not row.reclaimed:  # it holds what it was granted until it is given back
        node.admission.grant(row.id, SandboxSpec.from_json(row.spec), cpu_ids=row.cpu_ids)
    if row.disk_kept:
        node.kept.recover(row)
        return
    if row.state == "ended":
        if not row.reclaimed:
            node.spawn(ending.reclaim(node, row, None), f"reclaim:{row.id}")
        return
    if found.stands_alone(node, row) and not rebooted:
        return  # it stands still, as an earlier node has left it
    # Nobody else can hold it yet. What goes on behind the start of the node keeps it until it is safe to ask again.
    lock = node.lock(row.id)
    if row.state == "creating":
        await lock.acquire()
        # Nobody was told of it: so it never was, and a server that asks again gets it made anew.
        del node.row_table[row.id]
        node.spawn(_undo_create(node, row, lock), f"reclaim:{row.id}")
        return
    handle = None
    if row.driver_state is not None and not rebooted:
        handle = await node.driver.recover(row.id, row.driver_state)
    if row.state == "running" and handle is not None:
        await _take_over(node, row, handle)
        return
    if row.state == "running":
        why = "the host was restarted" if rebooted else "its machine was gone when the node started"
        row = row.ending(str(TerminationReason.NODE_LOST), why)
    for stored in node.records.running(row.id):
        lost = record.lost(stored.record, node.log_folder(row.id), ended_at=row.ended_at)
        node.records.finish(row.id, stored.id, lost)
    node.row_table[row.id] = row
    await lock.acquire()
    node.spawn(ending.finish(node, row, handle, lock), f"reclaim:{row.id}")


async def _undo_create(node: Sandboxes, row: SandboxRow, lock: asyncio.Lock) -> None:
    try:
        await node.driver.reclaim_leftovers(row.id)
        await inputs.remove(node.inputs_folder(row.id))
        await node.forget_logs(row.id)
        node.admission.give_back(row.id)
        faultpoints.reach("node.recover.undone")
        await node.journal.forget([row.id])
        return
    except Exception as error:
        log.exception("sandbox %s was cut off in its create, and can't be undone", row.id)
        row = row.ending(str(TerminationReason.FAILED), f"the node stopped while it was being created: {error}")
        node.row_table[row.id] = row
    finally:
        lock.release()
    await ending.settle(node, row, None)


async def _take_over(node: Sandboxes, row: SandboxRow, handle: Handle) -> None:
    spec = SandboxSpec.from_json(row.spec)
    live = node.make_live(row, spec, handle)
    await networks.attach(node, live)
    live.adopt()
    node.live_table[row.id] = live
    live.start()
    live.watch_machine()
    if row.quarantined_at_unix is not None:
        await quarantine.stand_still(live)
        return
    assert row.expires_at_unix is not None
    live.set_clocks(expires_at_unix=row.expires_at_unix, idle_timeout_s=row.idle_timeout_s)
    faultpoints.reach("node.recover.taken_over")
    log.info("sandbox %s goes on", row.id)
