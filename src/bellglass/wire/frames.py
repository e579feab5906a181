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
    """Bytes in, frames out. Holds at most one unfinished frame (less than 0.3 MiB)."""

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._buffer = bytearray()
        self._max_payload = max_payload

    @property
    def pending_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """All frames that are complete with `data`. The iterator must be used up before the next feed."""
        buffer = self._buffer
        buffer += data
        position, end = 0, len(buffer)
        try:
            while end - position >= HEADER_SIZE:
                length, type, channel, flags, stream = HEADER.unpack_from(buffer, position)
                if length > self._max_payload:
                    raise FrameError(f"a frame of {length} bytes is over the limit of {self._max_payload}")
                start = position + HEADER_SIZE
                if end - start < length:
                    break
                position = start + length
                with memoryview(buffer) as view:
                    payload = bytes(view[start:position])
                yield Frame(type, channel, flags, stream, payload)
        finally:
            del buffer[:position]
