"""The synthetic addresses of one sandbox: 198.18.0.0/15, each standing for a name that was allowed when it was asked.

Addresses are given out in a circle, so that one is not used again for another name before all others were: a program
that kept an old address is refused rather than led elsewhere. The circle goes on when names are dropped.
"""

from __future__ import annotations

import os
from collections.abc import Callable

FIRST = 0xC6120002  # 198.18.0.2: 198.18.0.0 is the network, 198.18.0.1 the sandbox's own identity
LAST = 0xC613FFFE
SIZE = LAST - FIRST + 1
MAX_NAMES = 1024


class Names:
    """Bounded: beyond `most` names the one that was asked and dialled the longest ago goes."""

    __slots__ = ("_addresses", "_most", "_names", "_next")

    def __init__(self, most: int = MAX_NAMES, start: int | None = None) -> None:
        # Not where the last resolver began: its addresses may still be known to programs.
        self._next = (int.from_bytes(os.urandom(4)) if start is None else start) % SIZE
        self._most = most
        self._addresses: dict[str, int] = {}  # in the order of their last use
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def address_of(self, name: str) -> int:
        """The address of the name, the same one as long as the name is kept."""
        address = self._addresses.pop(name, None)
        if address is None:
            if len(self._addresses) >= self._most:
                self._drop(next(iter(self._addresses)))
            address = self._free()
            self._names[address] = name
        self._addresses[name] = address
        return address

    def name_of(self, address: int) -> str | None:
        name = self._names.get(address)
        if name is not None:
            self._addresses[name] = self._addresses.pop(name)
        return name

    def keep(self, allowed: Callable[[str], bool]) -> None:
        """Drop the names that are not allowed any more."""
        for name in [name for name in self._addresses if not allowed(name)]:
            self._drop(name)

    def _free(self) -> int:
        while True:
            address = FIRST + self._next
            self._next = (self._next + 1) % SIZE
            if address not in self._names:
                return address

    def _drop(self, name: str) -> None:
        del self._names[self._addresses.pop(name)]
