"""Tag-length-value payloads of the guest protocol: `tag u16, length u32, value`, little-endian, tags may repeat.

Readers skip tags that they don't know. Everything read here may come from a hostile guest.
"""

from __future__ import annotations

import struct

from bellglass.wire.frames import FrameError

_HEAD = struct.Struct("<HI")
_U64 = struct.Struct("<Q")


def put(tag: int, value: bytes | str | int) -> bytes:
    """One field. An int becomes 8 bytes unsigned, a str its UTF-8 (surrogate escapes give back raw bytes)."""
    if isinstance(value, int):
        raw = _U64.pack(value)
    elif isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
    else:
        raw = value
    return _HEAD.pack(tag, len(raw)) + raw


def parse(payload: bytes | memoryview) -> dict[int, list[bytes]]:
    """All fields by tag, in order. Raises FrameError when a length leads past the end."""
    fields: dict[int, list[bytes]] = {}
    position, end = 0, len(payload)
    while position < end:
        if end - position < _HEAD.size:
            raise FrameError("a field's head is cut off")
        tag, length = _HEAD.unpack_from(payload, position)
        position += _HEAD.size
        if length > end - position:
            raise FrameError(f"field {tag} leads {length} bytes past a payload of {end}")
        fields.setdefault(tag, []).append(bytes(payload[position : position + length]))
        position += length
    return fields


def number(fields: dict[int, list[bytes]], tag: int, default: int | None = None) -> int | None:
    """The last value of a numeric field (1 to 8 bytes), or the default. Raises FrameError for another width."""
    if tag not in fields:
        return default
    raw = fields[tag][-1]
    if not 1 <= len(raw) <= 8:
        raise FrameError(f"field {tag} is {len(raw)} bytes, not a number")
    return int.from_bytes(raw, "little")


def text(fields: dict[int, list[bytes]], tag: int, default: str = "", *, limit: int = 65536) -> str:
    """The last value of a string field. Raises FrameError above `limit` bytes."""
    if tag not in fields:
        return default
    raw = fields[tag][-1]
    if len(raw) > limit:
        raise FrameError(f"field {tag} is {len(raw)} bytes, over {limit}")
    return raw.decode("utf-8", "surrogateescape")
