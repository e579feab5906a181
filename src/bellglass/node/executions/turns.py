"""Starts take turns: so many executions of a node are between START and STARTED at once, the sandboxes in a circle.

More at once would not start sooner: they share the same processors, and each of them takes as long as all together.
Who waits here costs nothing, and is served in order; a sandbox that starts hundreds delays a neighbour by one turn. A
turn also ends by itself; a sandbox that has let one run out takes no place until its agent answers, for a start that is
not answered costs nothing either.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PER_CPU = 8
LONGEST_S = 0.1
MUTE_S = 60.0


class Turn:
    """One place among those that start; without `place` it takes none. `over` may be called again."""

    def __init__(self, turns: Turns, sandbox_id: str, *, place: bool) -> None:
        self.kept = False
        self.sandbox_id = sandbox_id
        self._turns = turns
        self._place = place
        self._timer = asyncio.get_running_loop().call_later(turns.longest_s, self._ran_out) if place else None

    def over(self, *, answered: bool = False) -> None:
        if answered:
            self._turns.answered(self.sandbox_id)
        if self._place:
            self._place = False
            if self._timer is not None:
                self._timer.cancel()
            self._turns.leave()

    def _ran_out(self) -> None:
        self._turns.unanswered(self.sandbox_id)
        self.over()


class StartKnown(asyncio.Event):
    """Set once a program runs or never will; the turn that it was started in is over then. `answered`: the agent has
    said that it runs."""

    _turn: Turn | None = None

    def set(self, *, answered: bool = False) -> None:
        super().set()
        if self._turn is not None:
            self._turn.over(answered=answered)
            self._turn = None

    def keep(self, turn: Turn) -> None:
        """From now on it is this event that ends it."""
        if not self.is_set():
            turn.kept, self._turn = True, turn


class Turns:
    def __init__(self, at_once: int | None = None, longest_s: float = LONGEST_S) -> None:
        self.longest_s = longest_s
        self._free = at_once or PER_CPU * (os.cpu_count() or 1)
        self._waiting: dict[str, deque[asyncio.Future[bool]]] = {}
        """By sandbox; the first one's is the next turn. True: with a place."""
        self._mute: dict[str, float] = {}
        """Sandboxes that owe an answer for longer than a turn, and until when that counts (the loop's time)."""

    @asynccontextmanager
    async def of(self, sandbox_id: str) -> AsyncIterator[Turn]:
        """Wait for a turn; over at the end of the block, unless a `StartKnown` keeps it."""
        turn = Turn(self, sandbox_id, place=await self._enter(sandbox_id))
        try:
            yield turn
        finally:
            if not turn.kept:
                turn.over()

    def leave(self) -> None:
        while self._waiting:
            sandbox_id = next(iter(self._waiting))
            queue = self._waiting.pop(sandbox_id)
            while queue and queue[0].done():  # it was cancelled
                queue.popleft()
            if queue:
                queue.popleft().set_result(True)
                if queue:
                    self._waiting[sandbox_id] = queue  # behind all others
                return
        self._free += 1

    def answered(self, sandbox_id: str) -> None:
        self._mute.pop(sandbox_id, None)

    def unanswered(self, sandbox_id: str) -> None:
        now = asyncio.get_running_loop().time()
        self._mute = {other: until for other, until in self._mute.items() if until > now}
        self._mute[sandbox_id] = now + MUTE_S
        for called in self._waiting.pop(sandbox_id, ()):
            if not called.done():
                called.set_result(False)

    async def _enter(self, sandbox_id: str) -> bool:
        """Whether it has taken a place."""
        loop = asyncio.get_running_loop()
        if self._mute.get(sandbox_id, 0.0) > loop.time():
            return False
        if self._free > 0:
            self._free -= 1
            return True
        called = loop.create_future()
        self._waiting.setdefault(sandbox_id, deque()).append(called)
        try:
            return await called
        except asyncio.CancelledError:
            if not called.cancelled() and called.result():  # called in the same moment: the turn is another's then
                self.leave()
            raise
