"""Flow control of a stream that does not outlive its link: how far each way is, and what the agent may not say now.

Nothing here sends or waits: a stream asks, and does both itself.
"""

from __future__ import annotations

import struct
from collections import deque

from bellglass.wire import guest
from bellglass.wire.frames import HEADER, MAX_DATA, Frame, FrameError
from bellglass.wire.guest import STDIN, STDOUT, GuestType

JOIN_BELOW_BYTES = 16 * 1024
_OFFSET = struct.Struct("<Q")


class Inflow:
    """Bytes from the agent, kept until they are taken. `what` they are of stands in errors."""

    def __init__(self, what: str, window_bytes: int, ack_step_bytes: int, *, is_open: bool) -> None:
        self.is_open = is_open
        """Whether bytes, and then their end, may come."""
        self.ended = False
        self._what = what
        self._window_bytes = window_bytes
        self._ack_step_bytes = ack_step_bytes
        self._chunks: deque[memoryview | bytearray] = deque()
        self._received = 0
        self._taken = 0
        self._given = 0

    def add(self, frame: Frame) -> int:
        """DATA; how many bytes. Raises FrameError."""
        offset, data = guest.decode_offset(frame.payload)
        if frame.channel != STDOUT or not self.is_open or not data or offset != self._received:
            raise FrameError(f"{len(data)} bytes at {offset} on channel {frame.channel} of {self._what}")
        self._received += len(data)
        if self._received - self._given > self._window_bytes:
            raise FrameError(f"the bytes of {self._what} are beyond its window")
        last = self._chunks[-1] if self._chunks else None
        if len(data) >= JOIN_BELOW_BYTES:
            self._chunks.append(data)
        elif isinstance(last, bytearray) and len(last) < JOIN_BELOW_BYTES:
            last += data  # single bytes as frames of their own would cost a hundredfold in memory
        else:
            self._chunks.append(bytearray(data))
        return len(data)

    def end(self, frame: Frame) -> None:
        """EOF. Raises FrameError."""
        offset = guest.decode_offset(frame.payload)[0]
        if frame.channel != STDOUT or not self.is_open or offset != self._received:
            raise FrameError(f"EOF at {offset} on channel {frame.channel}, received are {self._received}")
        self.is_open, self.ended = False, True

    def next(self) -> memoryview | None:
        """The oldest bytes; nothing is added to them any more."""
        return memoryview(self._chunks.popleft()) if self._chunks else None

    def took(self, count: int) -> int | None:
        """So many of what `next` gave are used up: the offset to be acknowledged now, if one is."""
        self._taken += count
        if self._taken - self._given < self._ack_step_bytes:
            return None
        self._given = self._taken
        return self._given


class Outflow:
    """Bytes to the agent. They are not kept."""

    def __init__(self, window_bytes: int) -> None:
        self.sent = 0
        self._window_bytes = window_bytes
        self._acknowledged = 0

    @property
    def room(self) -> int:
        return self._window_bytes - (self.sent - self._acknowledged)

    @property
    def is_acknowledged(self) -> bool:
        return self._acknowledged >= self.sent

    def frame(self, stream_id: int, view: memoryview) -> tuple[bytes, memoryview]:
        """The next DATA with as much of the bytes as there is room for, as two pieces: no copy of them is made."""
        piece = view[: min(self.room, MAX_DATA)]
        head = HEADER.pack(len(piece) + _OFFSET.size, GuestType.DATA, STDIN, 0, stream_id) + _OFFSET.pack(self.sent)
        self.sent += len(piece)
        return head, piece

    def acknowledge(self, frame: Frame) -> int:
        """ACK; how many bytes more than before. Raises FrameError for bytes that were never sent."""
        offset = guest.decode_offset(frame.payload)[0]
        if frame.channel != STDIN or offset > self.sent:
            raise FrameError(f"ACK of {offset} on channel {frame.channel}, sent are {self.sent}")
        more = max(offset - self._acknowledged, 0)
        self._acknowledged += more
        return more
