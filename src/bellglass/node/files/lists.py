"""The stat records of a list, cut out of its bytes: each is preceded by its length."""

from __future__ import annotations

from collections.abc import Iterator

from bellglass.wire.frames import FrameError
from bellglass.wire.guest import Stat, decode_stat

MAX_RECORD_BYTES = 16384
MAX_LIST_BYTES = 4 * 1024 * 1024
"""Of the records of one list; what goes beyond is left out, as what is over its limit."""
TURN_BYTES = 8 * 1024
"""Records that are read in one turn of the loop."""
ENTRY_BYTES = 1024
"""What an entry costs beside its record, as long as it is held."""
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Of all lists of a sandbox together: records are as long as the sandbox likes, and many may list at once."""


class StatReader:
    """Bytes in, records out. A record over its limit, or more of them than asked for, is the agent's offence."""

    def __init__(self, most: int) -> None:
        self._buffer = bytearray()
        self._left = most

    def feed(self, data: bytes | memoryview) -> Iterator[Stat]:
        """Raises FrameError."""
        buffer = self._buffer
        buffer += data
        position = 0
        while len(buffer) - position >= 4:
            length = int.from_bytes(buffer[position : position + 4], "little")
            if length > MAX_RECORD_BYTES or self._left == 0:
                raise FrameError(f"a record of {length} bytes, {self._left} more are expected")
            if len(buffer) - position - 4 < length:
                break
            self._left -= 1
            yield decode_stat(bytes(buffer[position + 4 : position + 4 + length]))
            position += 4 + length
        del buffer[:position]

    def finish(self) -> None:
        """Raises FrameError when a record is cut off."""
        if self._buffer:
            raise FrameError("the last record of a list is cut off")
