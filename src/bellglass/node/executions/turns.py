"""Starts take turns: so many executions of a node are between START and STARTED at once, the sandboxes in a circle.

More at once would not start sooner: they share the same processors, and each of them takes as long as all together.
Who waits here costs nothing, and is served in order; a sandbox that starts hundreds delays a neighbour by one turn. A
turn also ends by itself, for an agent that does not answer is its own sandbox's trouble.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PER_CPU = 8
LONGEST_S = 0.1


class Turn:
    """One place among those that start. `over` may be called again."""

    def __init__(self, turns: Turns) -> None:
        self.kept = False
        self._turns: Turns | None = turns
        self._timer = asyncio.get_running_loop().call_later(turns.longest_s, self.over)

    def over(self) -> None:
        turns, self._turns = self._turns, None
        if turns is not None:
            self._timer.cancel()
            turns.leave()


class StartKnown(asyncio.Event):
    """Set once a program runs or never will; the turn that it was started in is over then."""

    _turn: Turn | None = None

    def set(self) -> None:
        super().set()
        if self._turn is not None:
            self._turn.over()
            self._turn = None

    def keep(self, turn: Turn) -> None:
        """From now on it is this event that ends it."""
        if not self.is_set():
            turn.kept, self._turn = True, turn


class Turns:
    def __init__(self, at_once: int | None = None, longest_s: float = LONGEST_S) -> None:
        self.longest_s = longest_s
        self._free = at_once or PER_CPU * (os.cpu_count() or 1)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By sandbox; the first one's is the next turn."""

    @asynccontextmanager
    async def of(self, sandbox_id: str) -> AsyncIterator[Turn]:
        """Wait for a turn; over at the end of the block, unless a `StartKnown` keeps it."""
        await self._enter(sandbox_id)
        turn = Turn(self)
        try:
            yield turn
        finally:
            if not turn.kept:
                turn.over()

    async def _enter(self, sandbox_id: str) -> None:
        if self._free > 0:
            self._free -= 1
            return
        called = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sandbox_id, deque()).append(called)
        try:
            await called
        except asyncio.CancelledError:
            if not called.cancelled():  # called in the same moment: the turn is somebody else's then
                self.leave()
            raise

    def leave(self) -> None:
        while self._waiting:
            sandbox_id = next(iter(self._waiting))
            queue = self._waiting.pop(sandbox_id)
            while queue and queue[0].done():  # it was cancelled
                queue.popleft()
            if queue:
                queue.popleft().set_result(None)
                if queue:
                    self._waiting[sandbox_id] = queue  # behind all others
                return
        self._free += 1
