"""Keeping members ready: what is made, when, and what goes because no pool wants it any more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bellglass.errors import BellglassError, NoCapacity
from bellglass.model import SandboxSpec
from bellglass.node.pools import lives
from bellglass.node.pools.member import Member, Tally
from bellglass.node.pools.members import Members
from bellglass.node.pools.wanted import WantedPool, same_machine

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

REFILL_DELAY_S = 0.02
"""A claim's answer and what its caller does first go before the refill."""
QUIET_S = 0.1
"""As long as half of a pool waits, refills wait until no create has come for so long: they would slow it down."""
TEMPLATE_LOOK_S = 2.0
WORTH_PART = 0.7
"""How far a refill must be for a create to wait for it."""
NEWEST_PART = 0.3
"""The weight of the newest refill in how long they usually take."""
FULL_PAUSE_S = 10.0
FAILED_PAUSES_S = (1.0, 5.0, 30.0, 60.0)
log = logging.getLogger("bellglass.pools")


class Refills:
    """`most_fills`: at once. `on_end` hears of a member's machine that died."""

    def __init__(self, node: Sandboxes, members: Members, most_fills: int, on_end: lives.OnEnd) -> None:
        self.wanted: dict[str, WantedPool] | None = None
        """None until the server has said it: until then nothing is made and nothing given up."""
        self.tallies: dict[str, Tally] = {}
        self.digests: dict[str, str] = {}
        """The newest of each template's name."""
        self.usual_s = 0.1
        """How long refills took lately that did not step back."""
        self._node = node
        self._members = members
        self._most_fills = most_fills
        self._on_end = on_end
        self._folder_mtime_ns = -1
        self._loop_task: asyncio.Task[None] | None = None
        self._check_disk: Callable[[], None]

    def start(self, check_disk: Callable[[], None]) -> None:
        """`check_disk` raises NoCapacity while nothing new is to be made on this host."""
        self._check_disk = check_disk
        self._loop_task = asyncio.get_running_loop().create_task(self._keep(), name="pools")

    async def suspend(self) -> None:
        """No refill any more."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)

    def want(self, pools: Iterable[WantedPool]) -> None:
        """From now on these; the pauses after failures are over."""
        self.wanted = {pool.template: pool for pool in pools}
        self.tallies = {name: self.tallies.get(name) or Tally() for name in self.wanted}
        for tally in self.tallies.values():
            tally.pause_until = 0.0
        self._members.changed.set()

    def pause(self, seconds: float) -> None:
        """Of all pools."""
        for tally in self.tallies.values():
            tally.pause_until = time.monotonic() + seconds

    def claimed(self, pool: str) -> None:
        """A create has taken a member: a refill is due, a little later."""
        if pool in self.tallies:
            self.tallies[pool].hits += 1
            self.tallies[pool].claimed_at = time.monotonic()
        for delay_s in (REFILL_DELAY_S, QUIET_S + 0.005):  # timers may be a millisecond early
            asyncio.get_running_loop().call_later(delay_s, self._members.changed.set)

    def settle(self) -> None:
        """Give up members that should not be, and begin as many refills as may be."""
        if self.wanted is None or self._node.stopping:
            return
        self._look_at_templates()
        for member in self._members.spare():
            pool = self.wanted.get(member.row.pool or "")
            digest = self.digests.get(pool.template) if pool is not None else None
            if pool is None or digest is None or not same_machine(member.spec, pool.spec(digest)):
                self._members.drop(member, "its pool, its shape or its template is another now")
        for pool in self.wanted.values():
            for member in self._members.spare(pool.template)[pool.size :]:
                self._members.drop(member, "the pool became smaller")
        for pool in sorted(self.wanted.values(), key=self._supplied):  # the emptiest first
            self._refill(pool)

    def soonest(self, pool: WantedPool, spec: SandboxSpec) -> Member | None:
        """A refill that is so far that nothing started now would overtake it, and that no other create waits for. One
        that steps back may take long on a busy host."""
        late = time.monotonic() - self.usual_s * WORTH_PART
        filling = (
            m
            for m in self._members.of(pool.template, "filling")
            if same_machine(m.spec, spec) and not (m.awaited or m.background)
        )
        return next((member for member in filling if member.began <= late), None)

    async def made(self, member: Member) -> bool:
        """Whether the refill ended well, in the usual time; then it is the caller's, until its next await."""
        assert member.filling is not None
        member.awaited = True
        try:
            await asyncio.wait([member.filling], timeout=self.usual_s)
            return member.state == "ready" and member.can_serve()
        finally:
            member.awaited = False

    async def _keep(self) -> None:
        while True:
            self._members.changed.clear()
            try:
                self.settle()
            except Exception:  # a folder that can't be read now must not end all refilling
                log.exception("settling the pools failed")
            # A template that was replaced tells nobody, and a refill that failed is tried again.
            await self._woken(TEMPLATE_LOOK_S if self.wanted or self._members.by_id else None)

    async def _woken(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._members.changed.wait()
        except TimeoutError:
            return

    def _refill(self, pool: WantedPool) -> None:
        tally, digest = self.tallies[pool.template], self.digests.get(pool.template)
        if digest is None:
            tally.problem = f"there is no template {pool.template!r} any more"
            return
        while (
            self._members.supply(pool.template) < pool.size
            and (time.monotonic() >= tally.claimed_at + QUIET_S or not self._half_waits(pool))
            and (pool.ceiling is None or self._members.machines(pool.template) < pool.ceiling)
            and time.monotonic() >= tally.pause_until
            and self._members.filling() < self._most_fills
        ):
            spec = pool.spec(digest)
            try:
                self._check_disk()
                member = lives.admit(self._node, pool.template, spec)
            except (BellglassError, OSError) as error:
                self._not_made(pool.template, error)
                return
            self._members.by_id[member.id] = member
            # Of a pool that runs empty the next create would start cold, which takes as much: no need to step back.
            member.background = self._half_waits(pool)
            member.filling = self._node.spawn(self._fill(member), f"pool:fill:{member.id}")

    async def _fill(self, member: Member) -> None:
        pool = member.row.pool or ""
        try:
            await lives.make(self._node, member, self._on_end)
        except Exception as error:  # noqa: BLE001 - told in the pool's report, and in the log
            self._not_made(pool, error)
            self._members.drop(member, f"it could not be made: {error}")
            return
        if not member.background:
            self.usual_s += (time.monotonic() - member.began - self.usual_s) * NEWEST_PART
        if pool in self.tallies:
            self.tallies[pool].made()
        self._members.changed.set()

    def _not_made(self, pool: str, error: Exception) -> None:
        tally = self.tallies.get(pool)
        if tally is None:
            return
        pause_s = FAILED_PAUSES_S[min(tally.failures, len(FAILED_PAUSES_S) - 1)]
        tally.failed(str(error), FULL_PAUSE_S if isinstance(error, NoCapacity) else pause_s)
        log.warning("pool %s: a refill was not made: %s", pool, error)

    def _supplied(self, pool: WantedPool) -> float:
        return self._members.supply(pool.template) / max(pool.size, 1)

    def _half_waits(self, pool: WantedPool) -> bool:
        return 2 * len(self._members.spare(pool.template)) >= pool.size

    def _look_at_templates(self) -> None:
        """The newest digest of each name. A template appears by a rename, which its parent's time tells."""
        try:
            mtime_ns = self._node.templates.folder.stat().st_mtime_ns
        except FileNotFoundError:
            mtime_ns = 0
        if mtime_ns != self._folder_mtime_ns:
            self.digests = {t.name: t.digest for t in reversed(self._node.templates.installed())}
            self._folder_mtime_ns = mtime_ns
