"""The two directions of an execution's bytes: what comes from the agent, and standard input towards it.

Offsets count from the program's first byte, over all links. After a new link the agent sends again from what it knows
to be acknowledged, and an acknowledgement beyond what it has sent on *this* link would be an error to it: so they
follow what was seen on the link, not what the log already holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bellglass.errors import BellglassError, Conflict
from bellglass.wire import guest
from bellglass.wire.frames import MAX_DATA, FrameError
from bellglass.wire.guest import STDIN, WINDOW_BYTES

ACK_STEP_BYTES = 64 * 1024


class Incoming:
    """One output channel. `accept` answers what is new of a DATA frame; `due` the offset to acknowledge, if any."""

    __slots__ = ("acked", "channel", "ended", "received", "repeated", "seen")

    def __init__(self, channel: int, received: int = 0) -> None:
        self.channel = channel
        self.received = received
        self.seen: int | None = 0 if received == 0 else None
        self.acked = 0
        self.repeated = False
        self.ended = False

    def link_restored(self) -> None:
        self.seen = None

    def accept(self, offset: int, data: memoryview) -> memoryview:
        """Raises FrameError for a gap, bytes that came on this link already, bytes after the end, or more than the
        window."""
        length = len(data)
        if length == 0 or length > MAX_DATA or (self.ended and offset + length > self.received):
            raise FrameError(f"{length} bytes at {offset} on channel {self.channel}, ended={self.ended}")
        self._look(offset)
        if offset != self.seen:
            raise FrameError(f"channel {self.channel} sends {offset} again, {self.seen} were seen")
        end = offset + length
        if end - self.acked > WINDOW_BYTES:
            raise FrameError(f"channel {self.channel} is {end - self.acked} bytes beyond the acknowledged ones")
        self.seen = end
        self.repeated = offset < self.received
        if end <= self.received:
            return data[:0]
        new = data[self.received - offset :]
        self.received = end
        return new

    def end(self, offset: int) -> None:
        self._look(offset)
        if offset != self.received:
            raise FrameError(f"channel {self.channel} ends at {offset}, received are {self.received}")
        self.ended = True

    def due(self) -> int | None:
        offset = min(self.seen or 0, self.received)
        # What came twice is acknowledged at once, so that links which keep breaking still get on.
        if offset - self.acked < (1 if self.repeated else ACK_STEP_BYTES):
            return None
        self.acked = offset
        return offset

    def _look(self, offset: int) -> None:
        if offset > self.received:
            raise FrameError(f"channel {self.channel} jumps from {self.received} to {offset}")
        if self.seen is None:
            self.seen = self.acked = offset  # the agent begins at what it knows to be acknowledged


class StdinFeed:
    """Standard input: at most a window of unacknowledged bytes, kept so that a new link can have them again."""

    def __init__(self, send: Callable[[bytes], bool], initial: bytes | None, *, stays_open: bool) -> None:
        self.broken: BellglassError | None = None
        self._send = send
        self._queue = memoryview(initial or b"")
        self._kept = bytearray()
        self._acked = 0
        self._ended = not stays_open
        self._end_sent = False
        self._moved = asyncio.Event()
        self._lock = asyncio.Lock()

    @property
    def open(self) -> bool:
        return not self._ended and self.broken is None

    @property
    def _sent(self) -> int:
        return self._acked + len(self._kept)

    def restart(self, encode: Callable[[int, int, bytes], bytes], stream_id: int) -> None:
        """A new link: all that is unacknowledged goes again."""
        for start in range(0, len(self._kept), MAX_DATA):
            self._send(encode(stream_id, self._acked + start, bytes(self._kept[start : start + MAX_DATA])))
        self._end_sent = False

    def pump(self, stream_id: int, *, link_is_up: bool) -> None:
        """Send what the window allows."""
        while link_is_up and self._queue and (room := WINDOW_BYTES - len(self._kept)) > 0:
            piece = bytes(self._queue[: min(room, MAX_DATA)])
            self._send(guest.encode_data(stream_id, STDIN, self._sent, piece))
            self._kept += piece
            self._queue = self._queue[len(piece) :]
        if link_is_up and self._ended and not self._queue and not self._end_sent:
            self._send(guest.encode_eof(stream_id, STDIN, self._sent))
            self._end_sent = True
        self._moved.set()

    def acknowledged(self, offset: int) -> None:
        """Raises FrameError for bytes that were never sent."""
        if offset > self._sent:
            raise FrameError(f"standard input acknowledged to {offset}, sent are {self._sent}")
        if offset > self._acked:
            del self._kept[: offset - self._acked]
            self._acked = offset

    async def write(self, data: bytes, pump: Callable[[], None]) -> None:
        """Wait until the program's window took all of `data`. Raises Conflict when standard input is not open."""
        async with self._lock:  # two writers at once: one after the other, each whole
            await self._taken()
            self._queue = memoryview(data)
            pump()
            try:
                await self._taken()
            finally:
                self._queue = memoryview(b"")  # a writer that gave up takes back what was not sent

    async def _taken(self) -> None:
        self.check_open()
        while self._queue:
            self._moved.clear()
            await self._moved.wait()
            self.check_open()

    def end(self) -> None:
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
            )
