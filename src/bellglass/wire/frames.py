"""The one frame that every stream of Bellglass is cut into, and its incremental reader.

    length u32 | type u8 | channel u8 | flags u16 | stream u32 | payload        (little-endian)

The guest link, the server-node link and the `application/x-bellglass-frames` output all use it; they differ in their
frame types. A reader never trusts the length: beyond `MAX_PAYLOAD` it raises FrameError, and the link is to be
closed. Frames of an unknown type are for the caller to skip; their length is always right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct("<IBBHI")
HEADER_SIZE = HEADER.size
MAX_DATA = 256 * 1024
MAX_PAYLOAD = MAX_DATA + 64


class FrameError(ValueError):
    """The bytes are not frames; the stream they came on can't be used any more."""


class Frame(NamedTuple):
    type: int
    channel: int
    flags: int
    stream: int
    payload: bytes | memoryview


def encode(type: int, stream: int, payload: bytes | memoryview = b"", *, channel: int = 0, flags: int = 0) -> bytes:
    """One frame as bytes. Raises FrameError for a payload over MAX_PAYLOAD: that would be our own fault."""
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"a payload of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
    return b"".join((HEADER.pack(len(payload), type, channel, flags, stream), payload))


class FrameReader:
    """Bytes in, frames out, each payload copied once. Holds at most one unfinished frame (less than 0.3 MiB)."""

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._begun = bytearray()
        self._max_payload = max_payload
        self._data = memoryview(b"")
        self._position = 0

    @property
    def pending_bytes(self) -> int:
        """Of a frame that is not complete."""
        return len(self._begun)

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """All frames that are complete with `data`. The iterator must be used up before the next feed, and `data` stay
        as it is until then, or until `keep`."""
        self._data, self._position = memoryview(data), 0
        return self._frames()

    def keep(self) -> None:
        """Take a copy of what the iterator has not come to: the memory that was fed is used again."""
        self._data, self._position = memoryview(bytes(self._data[self._position :])), 0

    def _frames(self) -> Iterator[Frame]:
        if self._begun:
            if (frame := self._finish_begun()) is None:
                return
            yield frame
        while len(self._data) - self._position >= HEADER_SIZE:
            length, type, channel, flags, stream = HEADER.unpack_from(self._data, self._position)
            self._check(length)
            start = self._position + HEADER_SIZE
            if len(self._data) - start < length:
                break
            self._position = start + length
            yield Frame(type, channel, flags, stream, bytes(self._data[start : self._position]))
        self._begun += self._data[self._position :]
        self._data, self._position = memoryview(b""), 0

    def _finish_begun(self) -> Frame | None:
        """The frame that an earlier feed left unfinished, if it is complete now."""
        begun = self._begun
        if not self._take(HEADER_SIZE):
            return None
        length, type, channel, flags, stream = HEADER.unpack_from(begun)
        self._check(length)
        if not self._take(HEADER_SIZE + length):
            return None
        with memoryview(begun) as view:
            payload = bytes(view[HEADER_SIZE:])
        begun.clear()
        return Frame(type, channel, flags, stream, payload)

    def _take(self, size: int) -> bool:
        """Whether the frame that was begun has `size` bytes, with as many of the new ones as that needs."""
        if (wanted := size - len(self._begun)) > 0:
            taken = self._data[self._position : self._position + wanted]
            self._begun += taken
            self._position += len(taken)
        return len(self._begun) >= size

    def _check(self, length: int) -> None:
        if length > self._max_payload:
            raise FrameError(f"a frame of {length} bytes is over the limit of {self._max_payload}")
