"""Reading a host's output as events: in bounded pieces, and at the sandbox's own cost."""

from __future__ import annotations

import asyncio
import time

from bellglass.node.contexts.lines import HostBroken, HostEvent, Lines
from bellglass.node.executions.log import Cursor
from bellglass.node.executions.registry import View
from bellglass.node.guestlink.budget import CpuBudget
from bellglass.wire.guest import STDOUT

PIECE_BYTES = 64 * 1024


class Reading:
    """From a combined offset on. `budget`: what reading costs the node's loop is the sandbox's to pay."""

    def __init__(self, view: View, offset: int, budget: CpuBudget) -> None:
        self.cursor = Cursor(offset)
        self.skipped_bytes = 0
        """What the log's ring had lost already, since this was last set to 0."""
        self._view = view
        self._budget = budget
        self._lines = Lines()
        self._broken: HostBroken | None = None

    async def seek(self) -> None:
        if self.cursor.offset:
            await self._view.log.seek(self.cursor)

    async def batch(self, wait_s: float) -> list[HostEvent] | None:
        """The next events, maybe none. None: the host has ended, and all that it wrote was read. Raises TimeoutError
        after `wait_s` of silence, and HostBroken behind the events that came before it."""
        log = self._view.log
        if self._broken is not None:
            raise self._broken
        if self.cursor.offset >= log.total_bytes:
            async with asyncio.timeout(wait_s):
                if not await log.wait(self.cursor):
                    return None
        began = time.perf_counter()
        events: list[HostEvent] = []
        try:
            for chunk in log.read(self.cursor, PIECE_BYTES):
                if chunk.stream == 0:
                    self.skipped_bytes += chunk.length
                    self._lines.skipped()
                elif chunk.stream == STDOUT:
                    for event in self._lines.feed(chunk.offset, chunk.data):
                        events.append(event)
        except HostBroken as broken:
            self._broken = broken
        finally:
            pause_s = self._budget.spend(time.perf_counter() - began)
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        return events
