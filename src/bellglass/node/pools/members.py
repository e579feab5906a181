"""The members of all pools of a node: which there are, in what state, and how one goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bellglass.node.pools import lives
from bellglass.node.pools.member import Member

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

log = logging.getLogger("bellglass.pools")


class Members:
    """`changed` is set when something happened after which a refill may be due, or a member superfluous."""

    def __init__(self, node: Sandboxes) -> None:
        self.by_id: dict[str, Member] = {}
        self.claimed: dict[str, str] = {}
        """Sandboxes that were members and have not ended: id to pool."""
        self.changed = asyncio.Event()
        self._node = node

    def of(self, pool: str, *states: str) -> Sequence[Member]:
        return [member for member in self.by_id.values() if member.row.pool == pool and member.state in states]

    def spare(self, pool: str | None = None) -> list[Member]:
        """Those that are ready and spoken for by nobody; of one pool or of all."""
        ready = (m for m in self.by_id.values() if m.state == "ready" and not m.awaited)
        return [member for member in ready if pool in (None, member.row.pool)]

    def filling(self) -> int:
        """Of all pools."""
        return sum(member.state == "filling" for member in self.by_id.values())

    def supply(self, pool: str) -> int:
        """Ready and soon ready."""
        return len(self.of(pool, "ready", "filling"))

    def machines(self, pool: str) -> int:
        """All that the pool's ceiling counts."""
        return sum(member.row.pool == pool for member in self.by_id.values()) + self.claimed_of(pool)

    def claimed_of(self, pool: str) -> int:
        return sum(name == pool for name in self.claimed.values())

    def drop(self, member: Member, why: str) -> asyncio.Task[None]:
        """It is given back, again until that works."""
        log.info("member %s of pool %s goes: %s", member.id, member.row.pool, why)
        member.leave("draining")
        return self._node.spawn(self._end(member), f"pool:drain:{member.id}")

    def forget(self, member: Member) -> None:
        """Nothing of it is left."""
        del self.by_id[member.id]
        self.changed.set()

    async def _end(self, member: Member) -> None:
        async with self._node.lock(member.id):
            if self.by_id.get(member.id) is member:
                await lives.end(self._node, member)
                self.forget(member)
