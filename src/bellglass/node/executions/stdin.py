"""Standard input on its way to the agent, by offset: over broken links, cancelled writers and restarts of the node.

At most a window of it is unacknowledged; that much is kept, so that a new link can have it again. A writer is answered
when the agent has acknowledged (put into the program's pipe) all of it, so nothing that was answered for can be lost
with the node. A restarted node learns from the agent's HELLO how much had come, and goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bellglass.errors import BellglassError, Conflict
from bellglass.wire import guest
from bellglass.wire.frames import MAX_DATA, FrameError
from bellglass.wire.guest import STDIN, WINDOW_BYTES, Input


class StdinFeed:
    """`send` puts a frame on the link and answers False without one. `initial` is input that is there already; unless
    `stays_open` the end follows it. `begun`: an earlier life of the node may have sent some of it."""

    def __init__(
        self, send: Callable[[bytes], bool], initial: bytes | None, *, stays_open: bool, begun: bool = False
    ) -> None:
        self.broken: BellglassError | None = None
        self._send = send
        self._stream_id = 0
        self._link_up = False
        self._known = not begun
        self._queue = memoryview(initial or b"")
        self._kept = bytearray()
        self._sent = 0
        self._acked = 0
        self._ended = not stays_open
        self._end_sent = False
        self._moved = asyncio.Event()
        self._lock = asyncio.Lock()

    # --- the link ---------------------------------------------------------------------------------------

    def link_up(self, stream_id: int, told: Input | None) -> None:
        """The agent has, or is about to have, the execution's START. `told`: what its HELLO says of the input."""
        self._stream_id, self._link_up = stream_id, True
        if not self._known:
            if told is None:
                self.close(Conflict("standard input can't be written to since the node was restarted"))
                return
            self._go_on(told)
        first = self._sent - len(self._kept)
        for start in range(0, len(self._kept), MAX_DATA):
            self._send(guest.encode_data(stream_id, STDIN, first + start, bytes(self._kept[start : start + MAX_DATA])))
        self._end_sent = False
        self._pump()

    def link_down(self) -> None:
        self._link_up = False

    def acknowledged(self, offset: int) -> None:
        """Raises FrameError for bytes that were never sent."""
        if offset > self._sent:
            raise FrameError(f"standard input acknowledged to {offset}, sent are {self._sent}")
        if offset > self._acked:
            self._acked = offset
            if (done := offset - (self._sent - len(self._kept))) > 0:
                del self._kept[:done]
            self._pump()

    # --- writers ----------------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """The offset behind what was taken from writers."""
        return self._sent

    @property
    def acked(self) -> int:
        return self._acked

    async def known(self) -> None:
        """Until it is known where it stands: after a restart of the node the agent tells."""
        await self._until(lambda: self._known)

    async def acked_beyond(self, offset: int) -> None:
        """Until more than that lies in the program's pipe."""
        await self._until(lambda: self._acked > offset)

    async def write(
        self, data: bytes, offset: int | None = None, *, on_taken: Callable[[int], None] | None = None
    ) -> None:
        """Wait until the window took all of `data`. Raises Conflict when standard input is not open, or when it does
        not stand at `offset`: then `details.received` tells where it does, and nothing was taken. `on_taken` hears how
        many of the bytes were taken, also of a write that is given up; they end at `sent`."""
        async with self._lock:  # two writers at once: one after the other, each whole
            await self._until(lambda: self._known and not self._queue)
            await self._check_offset(offset)
            self._queue = memoryview(data)
            self._pump()
            try:
                await self._until(lambda: not self._queue)
            finally:
                left, self._queue = len(self._queue), memoryview(b"")  # who gave up takes back what was not sent
                if on_taken is not None and self.broken is None:
                    on_taken(len(data) - left)

    async def settled(self) -> int:
        """Wait until what was sent up to now is acknowledged; answers the offset behind it. What a program took before
        it ended was taken."""
        while not self._known:
            await self._move()
        behind = self._sent
        while self._acked < behind:
            await self._move()
        return behind

    async def end(self, store: Callable[[int], None], offset: int | None = None) -> None:
        """The end comes behind what was written. `store` keeps that for a restarted node. Raises as `write` does."""
        async with self._lock:
            await self._check_offset(offset)
            store(await self.settled())
            self._ended = True
            self._pump()

    def end_known(self) -> None:
        """An earlier life of the node was told of the end."""
        self._ended = True

    def close(self, error: BellglassError) -> None:
        """The program is gone; writers hear `error`."""
        self.broken = self.broken or error
        self._queue = memoryview(b"")
        self._moved.set()

    def check_open(self) -> None:
        if self.broken is not None:
            raise self.broken
        if self._ended:
            raise Conflict(
                "standard input of this execution is not open",
                hint="start it with stdin_open=true, and write before eof=true",
                details={"received": self._sent, "ended": True},
            )

    # --- inside -----------------------------------------------------------------------------------------

    def _go_on(self, told: Input) -> None:
        # Until an ACK tells how much of it lies in the pipe, the window may be full.
        self._known = True
        self._sent, self._acked = told.received, max(told.received - WINDOW_BYTES, 0)
        self._queue = self._queue[told.received :]
        self._ended = self._ended or told.ended
        self._moved.set()

    def _pump(self) -> None:
        """Send what the window allows."""
        while self._link_up and self._queue and (room := WINDOW_BYTES - (self._sent - self._acked)) > 0:
            piece = bytes(self._queue[: min(room, MAX_DATA)])
            self._send(guest.encode_data(self._stream_id, STDIN, self._sent, piece))
            self._kept += piece
            self._sent += len(piece)
            self._queue = self._queue[len(piece) :]
        if self._link_up and self._known and self._ended and not self._queue and not self._end_sent:
            self._send(guest.encode_eof(self._stream_id, STDIN, self._sent))
            self._end_sent = True
        self._moved.set()

    async def _check_offset(self, offset: int | None) -> None:
        if offset is None:
            self.check_open()
            return
        if offset != self._sent or not self._known:
            self.check_open()
            # What is told here must hold for a restarted node too.
            received = await self.settled()
            if offset != received:
                raise Conflict(
                    f"standard input stands at byte {received}, not at {offset}",
                    hint="go on from details.received",
                    details={"received": received, "ended": False},
                )

    async def _until(self, reached: Callable[[], bool]) -> None:
        self.check_open()
        while not reached():
            await self._move()
            self.check_open()

    async def _move(self) -> None:
        """Until something has changed. Raises Conflict when nothing will any more."""
        if self.broken is not None:
            raise self.broken
        self._moved.clear()
        await self._moved.wait()
