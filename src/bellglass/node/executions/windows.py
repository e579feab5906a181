"""An execution's output as it comes from the agent (standard input is stdin.py's).

Offsets count from the program's first byte, over all links. After a new link the agent sends again from what it knows
to be acknowledged, and an acknowledgement beyond what it has sent on *this* link would be an error to it: so they
follow what was seen on the link, not what the log already holds.
"""

from __future__ import annotations

from bellglass.wire.frames import MAX_DATA, FrameError
from bellglass.wire.guest import WINDOW_BYTES

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
