"""The rest of a request that was answered before all of it had come.

A close with bytes unread, or with more on their way, is a reset, and a client that sends first and reads later then
hears of a broken connection instead of the answer. So the rest is read and dropped: for a bounded time each, and at a
bounded rate all together.
"""

from __future__ import annotations

import asyncio

REST_S = 5.0
KEPT_REST_BYTES = 64 * 1024
"""Of a body: so much is read on where the connection is kept for further requests."""
BYTES_PER_S = 256 * 2**20
BURST_S = 0.25


class Pace:
    """What all connections together may drop."""

    def __init__(self) -> None:
        self._paid_until = 0.0

    def spend(self, count: int, now: float) -> float:
        """For how long whoever dropped these bytes is to take no more."""
        self._paid_until = max(self._paid_until, now - BURST_S) + count / BYTES_PER_S
        return max(self._paid_until - now, 0.0)


class Rest:
    """That of one connection, which is cut if it has not ended by then; a client that still reads its answer gets that
    to the end. `end` when it is over, whoever ended it."""

    def __init__(self, transport: asyncio.Transport, pace: Pace, within_s: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._pace = pace
        self._cut = self._loop.call_later(REST_S if within_s is None else within_s, self._give_up)
        self._going_on: asyncio.TimerHandle | None = None
        self.dropped(0)

    def dropped(self, count: int) -> None:
        """So many bytes more."""
        wait_s = self._pace.spend(count, self._loop.time())
        if wait_s and self._going_on is None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._going_on = self._loop.call_later(wait_s, self._go_on)

    def _give_up(self) -> None:
        if self._transport.get_write_buffer_size():
            self._transport.close()
        else:
            self._transport.abort()

    def _go_on(self) -> None:
        self._going_on = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self) -> None:
        """Safe to repeat."""
        self._cut.cancel()
        if self._going_on is not None:
            self._going_on.cancel()
            self._go_on()
