"""The reader that started a waiting execution: when it is slow the program blocks, and so it gets every byte.

Its connection may break without its knowing anything of the node: its place is kept for a while, and the log held back
as if it were still reading, until it attaches again (or nobody does, and the log becomes a ring like any other).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bellglass.node.executions.log import Cursor

AHEAD_BYTES = 256 * 1024
"""So much may lie in the log that it has not read before the program blocks."""
PLACE_KEPT_S = 60.0
"""As long as the SDK tries to attach again."""


class Starter:
    """`on_free` is called when nobody holds the program back any more."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        self._on_free = on_free
        self._cursor: Cursor | None = None
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, cursor: Cursor) -> None:
        """This reader is it from now on; one before it has become a reader like any other."""
        self._stop_timer()
        self._cursor = cursor

    def detach(self, cursor: Cursor, *, keep_place: bool = True) -> None:
        if self._cursor is not cursor:
            return
        if keep_place:
            self.keep_place(cursor.offset)
        else:
            self.free()

    def keep_place(self, offset: int) -> None:
        """Hold on as if it had read up to `offset`."""
        self._stop_timer()
        self._cursor = Cursor(offset)
        self._timer = asyncio.get_running_loop().call_later(PLACE_KEPT_S, self._give_up)

    def free(self) -> None:
        """Nothing is held back any more. Safe to repeat."""
        self._stop_timer()
        self._cursor = None

    def holds_back(self, total_bytes: int) -> bool:
        return self._cursor is not None and total_bytes - self._cursor.offset > AHEAD_BYTES

    def _give_up(self) -> None:
        self.free()
        self._on_free()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
