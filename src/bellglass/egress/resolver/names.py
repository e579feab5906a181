"""The synthetic addresses of one sandbox: each stands for a name that its policy allows.

A name that a rule spells out has an address of 198.18.0.0/16 that follows from it, so that a program may keep it for as
long as it likes: it is the same after the resolver was started anew. Names that only a wildcard or `open` allows
get one of 198.19.0.0/16 when they are asked for. Those go round in a circle: none is used again for another name before
all others were, and a program that kept one too long is refused rather than led elsewhere.
"""

from __future__ import annotations

import os
from binascii import crc32
from collections.abc import Callable, Iterable

FIRST_PINNED = 0xC6120002  # 198.18.0.2: 198.18.0.0 is the network, 198.18.0.1 the sandbox's own identity
PINNED_SIZE = 0xC6130000 - FIRST_PINNED
FIRST = 0xC6130000
LAST = 0xC613FFFE
SIZE = LAST - FIRST + 1
MAX_NAMES = 1024


class Names:
    """Bounded: beyond `most` names that were asked for the one that was asked and dialled the longest ago goes."""

    __slots__ = ("_addresses", "_most", "_names", "_next", "_pinned", "_salt")

    def __init__(self, most: int = MAX_NAMES, *, salt: str = "", start: int | None = None) -> None:
        # Not where the last resolver began: its addresses may still be known to programs.
        self._next = (int.from_bytes(os.urandom(4)) if start is None else start) % SIZE
        self._most = most
        self._salt = salt
        self._pinned: dict[str, int] = {}
        self._addresses: dict[str, int] = {}  # in the order of their last use
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._names)

    def address_of(self, name: str) -> int:
        """The address of the name, the same one as long as the name is kept."""
        if name in self._pinned:
            return self._pinned[name]
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
        if name is not None and self._addresses.get(name) == address:
            self._addresses[name] = self._addresses.pop(name)
        return name

    def follow(self, spelled: Iterable[str], allowed: Callable[[str], bool]) -> None:
        """Another policy: the names that it spells out, and which ones it allows. Those that it allows keep their
        addresses, all others are dropped."""
        for name in [name for name in self._addresses if not allowed(name)]:
            self._drop(name)
        wanted: dict[int, str | None] = {}
        for name in spelled:
            address = self._following_from(name)
            # Two names for one address: neither has it, whichever came first.
            wanted[address] = name if wanted.get(address, name) == name else None
        for name, address in list(self._pinned.items()):
            is_left_over = wanted.get(address) != name
            if is_left_over and (address in wanted or not allowed(name) or len(self._pinned) > self._most):
                del self._pinned[name], self._names[address]
        for address, spelled_name in wanted.items():
            if spelled_name is not None:
                self._pinned[spelled_name] = address
                self._names[address] = spelled_name

    def _following_from(self, name: str) -> int:
        # Spread is all that is asked of it; hashlib would bring OpenSSL into the process.
        return FIRST_PINNED + crc32(f"{self._salt}/{name}".encode()) % PINNED_SIZE

    def _free(self) -> int:
        while True:
            address = FIRST + self._next
            self._next = (self._next + 1) % SIZE
            if address not in self._names:
                return address

    def _drop(self, name: str) -> None:
        del self._names[self._addresses.pop(name)]
