"""The size of an execution's terminal: sent to the agent, kept for a restarted node, never faster than makes sense.

Whoever drags a window's corner changes the size a hundred times a second, and nothing says how often a client may: only
the last size counts, so at most one goes out in each `PAUSE_S`.

Those who are attached to one are attached.py's.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING

from bellglass.errors import NoCapacity
from bellglass.node.executions.host import Host
from bellglass.wire import guest

if TYPE_CHECKING:
    from bellglass.node.executions.attached import Typist
    from bellglass.node.executions.run import Run

PAUSE_S = 0.02


class Terminal:
    """`size`: columns and rows as they were last asked for."""

    def __init__(self, run: Run, host: Host, size: tuple[int, int]) -> None:
        self.size = self._sent = size
        self.typists: dict[str, Typist] = {}
        """Who is or was attached, by the name that he gave."""
        self._run = run
        self._host = host
        self._timer: asyncio.TimerHandle | None = None

    def agent_can(self) -> bool:
        """Whether the agent of the link that is up knows terminals."""
        hello = self._host.session.hello
        return hello is not None and bool(hello.features & guest.FEATURE_TERMINAL)

    def resize(self, columns: int, rows: int) -> None:
        """The program hears of it within `PAUSE_S`, or once there is a link again."""
        self.size = (columns, rows)
        if self._timer is None:
            self._send()

    def link_up(self) -> None:
        self._send()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        self._timer = None
        if self.size == self._sent or not self._run.running:
            return
        if self._host.session.send(guest.encode_resize(self._run.id, *self.size)):
            self._sent = self.size
            try:
                self._host.run_resized(self._run)
            except (sqlite3.Error, NoCapacity):  # a full disk: after a restart the record tells the size before
                pass
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._send)
