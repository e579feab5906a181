"""How many connections the API holds, and which one makes room for a new one.

A connection costs a descriptor and some kilobytes before anybody has shown a key. At the limit the one that has waited
longest for a request is closed, first of those that never showed a key: so whoever opens thousands pushes out his own.
Only when every connection has a request under way is a new one turned away.
"""

from __future__ import annotations

import resource
from typing import Protocol

import structlog

from bellglass.errors import NoCapacity
from bellglass.server.http.rests import Pace

LINGER_S = 1.0
MAX_LINGERING = 256
"""Connections that were turned away and may still be reading why."""
SPARE_DESCRIPTORS = 256
"""For the database, the link, logs and those turned away."""
log = structlog.get_logger("bellglass.server")


class Closable(Protocol):
    def close_idle(self) -> None: ...


class Connections:
    """The open ones. Each is known by an object of its own that can be told to close."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open: set[Closable] = set()
        self.evicted = 0
        self.refused = 0
        self.lingering = 0
        self.pace = Pace()
        # Both in the order in which they fell idle.
        self._strangers: dict[Closable, None] = {}
        self._idle: dict[Closable, None] = {}

    def admit(self, connection: Closable) -> bool:
        """Count it in, or answer False when there is no room for it."""
        if len(self.open) >= self.limit and not self._make_room():
            self.refused += 1
            self._tell()
            return False
        self.open.add(connection)
        self._strangers[connection] = None
        return True

    def busy(self, connection: Closable) -> None:
        """A request of it is under way."""
        self._strangers.pop(connection, None)
        self._idle.pop(connection, None)

    def idle(self, connection: Closable, *, known: bool) -> None:
        """It was answered: it waits for its next request, or for the rest of its last one. `known`: that came with a
        key."""
        if connection in self.open:
            (self._idle if known else self._strangers)[connection] = None

    def gone(self, connection: Closable) -> None:
        self.open.discard(connection)
        self.busy(connection)

    def error(self) -> NoCapacity:
        return NoCapacity(
            f"all {self.limit} connections of this server are in use",
            hint="close some, or raise server.max_connections; retry",
            details={"resource": "connections"},
        )

    def _make_room(self) -> bool:
        for waiting in (self._strangers, self._idle):
            if waiting:
                oldest = next(iter(waiting))
                self.gone(oldest)
                self.evicted += 1
                self._tell()
                oldest.close_idle()
                return True
        return False

    def _tell(self) -> None:
        """The first time and then ever less often."""
        count = self.evicted + self.refused
        if count & (count - 1) == 0:
            log.warning("no room for connections", limit=self.limit, evicted=self.evicted, refused=self.refused)


def limit_for(setting: int, name: str) -> int:
    """The setting of this name, or less where this process may not open so many descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft - SPARE_DESCRIPTORS, 16)
    if most < setting:
        log.warning("fewer connections than set", name=name, limit=most, setting=setting, descriptors=soft)
    return min(setting, most)
