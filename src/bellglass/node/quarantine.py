"""Sandboxes that the server does not know, such as after an older database was restored: they stand still until the
operator has decided.

Executions are frozen, clocks stop, nothing is served; the disk, the memory and what ran in it stay as they are. How
long that lasts, and what becomes of them then, is the server's to say: a node never deletes one of them by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from bellglass.model import TerminationReason
from bellglass.node import found
from bellglass.node.journal import SandboxRow
from bellglass.node.live import LiveSandbox

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

FROZEN_FOR = "quarantine"
log = logging.getLogger("bellglass.sandboxes")


async def enter(node: Sandboxes, sandbox_id: str, generation: int) -> SandboxRow:
    """Idempotent. Raises NotFound."""
    async with node.lock(sandbox_id):
        row = node.row(sandbox_id, generation)
        # First: what can't be frozen must not be told to stand still, and is tried again.
        if (live := node.live_table.get(sandbox_id)) is not None:
            await stand_still(live)
        if row.quarantined_at_unix is None:
            row = replace(row, quarantined_at_unix=time.time())
            await node.journal.put(row)
            node.row_table[row.id] = row
            log.warning("sandbox %s is in quarantine: the server does not know it", row.id)
        return row


async def leave(node: Sandboxes, sandbox_id: str, generation: int, project_id: str | None) -> SandboxRow:
    """It goes on where it stood, with the lifetime that it had left. Idempotent. Raises NotFound."""
    async with node.lock(sandbox_id):
        row = node.row(sandbox_id, generation)
        if (since := row.quarantined_at_unix) is None:
            return row
        if found.stands_alone(node, row):
            row = replace(row, quarantined_at_unix=None, project_id=project_id or row.project_id)
            return await found.end(node, row, TerminationReason.NODE_LOST)
        stood_s = time.time() - since
        expires_at = None if row.expires_at_unix is None else row.expires_at_unix + stood_s
        row = replace(
            row, quarantined_at_unix=None, expires_at_unix=expires_at, project_id=project_id or row.project_id
        )
        if (live := node.live_table.get(sandbox_id)) is not None:
            await asyncio.to_thread(live.thaw, FROZEN_FOR)
        await node.journal.put(row)
        node.row_table[row.id] = row
        if live is not None:
            assert row.expires_at_unix is not None
            live.set_clocks(expires_at_unix=row.expires_at_unix, idle_timeout_s=row.idle_timeout_s)
        log.info("sandbox %s has left quarantine", row.id)
        return row


async def stand_still(live: LiveSandbox) -> None:
    live.stop_clocks()
    await asyncio.to_thread(live.freeze, FROZEN_FOR)
