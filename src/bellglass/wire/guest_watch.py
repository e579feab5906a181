"""The records of a watch (docs/reference/guest-protocol.md): what changed, as the guest tells it on channel 1."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from bellglass.wire import tlv
from bellglass.wire.frames import FrameError


class Change(StrEnum):
    """The letter in a record."""

    CREATE = "c"
    WRITE = "w"
    REMOVE = "r"
    RENAME = "n"
    CHMOD = "m"
    OVERFLOW = "o"
    READY = "b"
    SYNCED = "s"


class Changed(NamedTuple):
    kind: Change
    name: str
    """From the watched folder, "." for itself; the guest's bytes, with surrogate escapes."""
    folder: bool
    cookie: int
    """The same in the rename and the create of one move; 0: none."""
    token: int
    """Of SYNCED: what asked for it."""


def decode_change(payload: bytes) -> Changed:
    """Raises FrameError."""
    fields = tlv.parse(payload)
    letter = fields.get(1, [b""])[-1].decode("ascii", "replace")
    if letter not in tuple(Change):
        raise FrameError(f"a change of kind {letter!r}")
    return Changed(
        kind=Change(letter),
        name=tlv.text(fields, 2, limit=8192),
        folder=bool(tlv.number(fields, 3, 0)),
        cookie=tlv.number(fields, 4, 0) or 0,
        token=tlv.number(fields, 5, 0) or 0,
    )
