"""What was typed into a terminal and is not known to lie in it: sent again after a break, and nothing twice."""

from __future__ import annotations

import json
from typing import Any

MOST_BYTES = 256 * 1024
"""Kept. So much is always taken at once, by server and node, also where the program reads nothing: sending it again
never waits for the program."""
PIECE_BYTES = 64 * 1024


class Typed:
    """`position` and `total`: of the first byte kept, among what this client typed and among all that was."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._position = 0
        self._total = 0
        self._began = False

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, data: bytes) -> None:
        self._kept += data

    def acknowledged(self, told: dict[str, Any]) -> None:
        """An `input` message."""
        if int(told["offset"]) > self._position:  # else of what was known to be on its way when this attached
            self._drop(int(told["offset"]) - self._position)
            self._position, self._total = int(told["offset"]), int(told["total"])

    def attached(self, told: dict[str, Any]) -> bytes:
        """A `started` message; answers what is to be sent again. Where others typed while the node was restarted, how
        much of it was taken can't be known: then nothing is."""
        if self._began:
            taken = int(told["input"]) - self._position if told["known"] else int(told["total"]) - self._total
            self._drop(taken if 0 <= taken <= len(self._kept) else len(self._kept))
        self._began = True
        self._position, self._total = int(told["input"]), int(told["total"])
        return bytes(self._kept)

    def _drop(self, count: int) -> None:
        del self._kept[: max(count, 0)]


def message_of(text: str) -> dict[str, Any]:
    """A text message of a terminal; an empty one for what is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
