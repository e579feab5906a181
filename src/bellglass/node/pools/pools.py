"""Every pool of this node: keeping members ready, promising one to a create, turning it into a sandbox.

A claim has two steps, because a member's id is in every kernel name and so becomes the sandbox's: `take` promises a
member and answers its id, then `sandbox.create` with that id claims it. A promise that nobody redeems lapses. A claim
is one write to the journal: before it the member is a pool's, after it a project's, whatever crashes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bellglass.errors import BellglassError, NoCapacity
from bellglass.model import SandboxSpec, TerminationReason
from bellglass.node import creating
from bellglass.node.admission import Share
from bellglass.node.journal import SandboxRow
from bellglass.node.live import LiveSandbox
from bellglass.node.pools import lives
from bellglass.node.pools.member import Member, Tally
from bellglass.node.pools.wanted import WantedPool, same_machine

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

TAKEN_S = 30.0
"""A promise lapses then; longer than a server waits for a link that broke in between."""
ANSWER_S = 1.0
REFILL_DELAY_S = 0.02
"""A claim's answer and what its caller does first go before the refill."""
QUIET_S = 0.1
"""As long as half of a pool waits, refills wait until no create has come for so long: they would slow it down."""
TEMPLATE_LOOK_S = 2.0
WORTH_PART = 0.7
"""How far a refill must be for a create to wait for it."""
NEWEST_PART = 0.3
"""The weight of the newest refill in how long they usually take."""
EVICTED_PAUSE_S = 30.0
FULL_PAUSE_S = 10.0
FAILED_PAUSES_S = (1.0, 5.0, 30.0, 60.0)
log = logging.getLogger("bellglass.pools")


class Pools:
    """`start` after recovery, `suspend` when the node stops. `most_fills`: refills at once."""

    def __init__(self, node: Sandboxes, most_fills: int) -> None:
        self.members: dict[str, Member] = {}
        self._node = node
        self._most_fills = most_fills
        self._wanted: dict[str, WantedPool] | None = None
        """None until the server has said it: until then nothing is made and nothing given up."""
        self._tallies: dict[str, Tally] = {}
        self._claimed: dict[str, str] = {}
        """Sandboxes that were members and have not ended: id to pool."""
        self._digests: dict[str, str] = {}
        self._folder_mtime_ns = -1
        self._usual_s = 0.1
        """How long refills took lately that did not step back."""
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._check_disk: Callable[[], None]

    # --- life -------------------------------------------------------------------------------------------

    async def recover(self, rows: Iterable[SandboxRow], *, rebooted: bool) -> None:
        """What an earlier node left: members that run stay members, half-made and half-ended ones go."""
        for row in self._node.rows():
            if row.pool is not None and row.state != "ended":
                self._claimed[row.id] = row.pool
        for row in rows:
            member = Member(row, SandboxSpec.from_json(row.spec), "draining")
            self.members[row.id] = member
            self._node.admission.grant(row.id, member.spec, cpu_ids=row.cpu_ids)
            if row.state == "pooled" and not rebooted:
                try:
                    await lives.take_over(self._node, member, self.noticed)
                except Exception:
                    log.exception("member %s could not be recovered", row.id)
            if member.state != "ready":
                self._drop(member, "an earlier node left it")

    def start(self, check_disk: Callable[[], None]) -> None:
        """`check_disk` raises NoCapacity while nothing new is to be made on this host."""
        self._check_disk = check_disk
        self._loop_task = asyncio.get_running_loop().create_task(self._keep(), name="pools")

    async def suspend(self) -> None:
        """No refill any more; members go on without the node."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)

    async def close(self) -> None:
        """After the refills under way have ended."""
        for member in self.members.values():
            if member.live is not None:
                await member.live.suspend()

    # --- for the server ---------------------------------------------------------------------------------

    def apply(self, wanted: Iterable[WantedPool]) -> None:
        """From now on these are the pools; members of no other one stay."""
        self._wanted = {pool.template: pool for pool in wanted}
        self._tallies = {name: self._tallies.get(name) or Tally() for name in self._wanted}
        for tally in self._tallies.values():
            tally.pause_until = 0.0
        self._wake.set()

    async def drain(self) -> None:
        """No pools any more; returns when no member is left."""
        self.apply(())
        self.release_all()
        self._settle()
        while tasks := self._node.tasks("pool:"):
            await asyncio.wait(tasks)
            self._settle()

    async def take(self, spec: SandboxSpec, *, has_inputs: bool) -> str | None:
        """The id under which this create finds a member, or None (counted, with the reason). Where none is ready, but
        one will be sooner than a machine that is started now, it waits for that one."""
        pool = (self._wanted or {}).get(spec.template)
        if pool is None:
            return None
        if not has_inputs:
            fitting = [m for m in self._spare(pool.template) if same_machine(m.spec, spec) and m.can_serve()]
            member = fitting[0] if fitting else self._soonest(pool, spec)
            if member is not None and (member.state == "ready" or await self._made(member)):
                member.take(asyncio.get_running_loop().call_later(TAKEN_S, self.release, member.id))
                return member.id
        self._missed(pool.template, self._why_cold(pool, spec, has_inputs=has_inputs))
        return None

    def release(self, sandbox_id: str, *, discard: bool = False) -> None:
        """A promise that is not redeemed: the member is ready again, or given up. Unknown ids are success."""
        member = self.members.get(sandbox_id)
        if member is None or member.state not in ("taken", "ready"):
            return
        member.leave("ready")
        if discard:
            self._drop(member, "its id is in use")
        self._wake.set()

    def release_all(self) -> None:
        """Whoever had the promises may have died. If not, a create that comes all the same still finds its member."""
        for member in list(self.members.values()):
            self.release(member.id)

    def report(self) -> list[dict[str, Any]]:
        """One entry a pool, in the order of their names."""
        return [self._report(pool) for _, pool in sorted((self._wanted or {}).items())]

    # --- for creates ------------------------------------------------------------------------------------

    async def claim(
        self, sandbox_id: str, project_id: str, spec: SandboxSpec, about: dict[str, Any], *, has_inputs: bool
    ) -> SandboxRow | None:
        """The member as a sandbox that runs, or None when there is none of that id (any more): then nothing of it is
        left, and a machine can be started under the same id. Called under the id's lock. Raises what a driver raises
        where a member that can't be claimed can't be given back either."""
        member = self.members.get(sandbox_id)
        if member is None:
            return None
        pool, live = member.row.pool or "", member.live
        fits = member.state in ("taken", "ready") and same_machine(member.spec, spec) and not has_inputs
        member.leave("claiming")  # no promise lapses any more, and nobody else drops it
        # Asked, not believed: a machine may have died a moment ago.
        if not fits or live is None or not await live.session.answers(asyncio.get_running_loop().time() + ANSWER_S):
            self._missed(pool, "died")
            try:
                await lives.give_back(self._node, member)
            except Exception:
                self._drop(member, "it could not be claimed")  # again, until it works
                raise
            self._gone(member)
            return None
        # A machine that dies from here on is the sandbox's to end, not the pool's.
        member.leave("claimed")
        try:
            row = replace(member.row, project_id=project_id, spec=spec.to_json(), about=about)
            live.claimed(spec)
            row = await creating.confirm(self._node, row, live, spec)
        except Exception:
            # Whether it was written is not known: nobody gets it.
            self._node.row_table.pop(sandbox_id, None)
            self._node.live_table.pop(sandbox_id, None)
            self._drop(member, "its claim could not be written")
            raise
        del self.members[sandbox_id]
        self._claimed[sandbox_id] = pool
        if pool in self._tallies:
            self._tallies[pool].hits += 1
            self._tallies[pool].claimed_at = time.monotonic()
        for delay_s in (REFILL_DELAY_S, QUIET_S + 0.005):  # timers may be a millisecond early
            asyncio.get_running_loop().call_later(delay_s, self._wake.set)
        return row

    async def grant(self, sandbox_id: str, spec: SandboxSpec) -> Share:
        """`Admission.grant` for a machine that is started cold: members give way to it where that helps. Raises what
        it raises."""
        free_before = -1.0
        while True:
            try:
                return self._node.admission.grant(sandbox_id, spec)
            except NoCapacity as error:
                resource, free = error.details.get("resource"), error.details.get("free", 0)
                short = error.details.get("asked", 0) - free
                spare = self._spare()
                held = [getattr(self._node.admission.granted(member.id), str(resource), 0) for member in spare]
                if free <= free_before or not spare or sum(held) < short:
                    raise
                free_before = free
                log.info("member %s gives way to %s: %s", spare[-1].id, sandbox_id, error.message)
                for tally in self._tallies.values():
                    tally.pause_until = time.monotonic() + EVICTED_PAUSE_S
                await asyncio.wait([self._drop(spare[-1], "its room was needed")])

    def ended(self, sandbox_id: str) -> None:
        """A sandbox's processes are dead; if it was a member once, there is room below the pool's ceiling."""
        if self._claimed.pop(sandbox_id, None) is not None:
            self._wake.set()

    def noticed(self, live: LiveSandbox, reason: TerminationReason, message: str | None) -> None:
        """A machine died, or has to: a member's, or that of a sandbox which was one."""
        member = self.members.get(live.sandbox_id)
        if member is None or member.state == "claimed":
            self._node.end_soon(live, reason, message)
        elif member.live is live and member.state in ("ready", "taken"):
            self._drop(member, message or str(reason))

    # --- keeping them ready -----------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._settle()
            except Exception:  # a folder that can't be read now must not end all refilling
                log.exception("settling the pools failed")
            # A template that was replaced tells nobody, and a refill that failed is tried again.
            await self._woken(TEMPLATE_LOOK_S if self._wanted or self.members else None)

    async def _woken(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _settle(self) -> None:
        """Give up members that should not be, and begin as many refills as may be."""
        if self._wanted is None or self._node.stopping:
            return
        self._look_at_templates()
        for member in self._spare():
            pool = self._wanted.get(member.row.pool or "")
            digest = self._digests.get(pool.template) if pool is not None else None
            if pool is None or digest is None or not same_machine(member.spec, pool.spec(digest)):
                self._drop(member, "its pool, its shape or its template is another now")
        for pool in self._wanted.values():
            for member in self._spare(pool.template)[pool.size :]:
                self._drop(member, "the pool became smaller")
        # The emptiest pool first.
        for pool in sorted(self._wanted.values(), key=lambda pool: self._supply(pool) / max(pool.size, 1)):
            self._refill(pool)

    def _refill(self, pool: WantedPool) -> None:
        tally, digest = self._tallies[pool.template], self._digests.get(pool.template)
        if digest is None:
            tally.problem = f"there is no template {pool.template!r} any more"
            return
        while (
            self._supply(pool) < pool.size
            and (time.monotonic() >= tally.claimed_at + QUIET_S or not self._half_waits(pool))
            and (pool.ceiling is None or self._machines(pool) < pool.ceiling)
            and time.monotonic() >= tally.pause_until
            and sum(member.state == "filling" for member in self.members.values()) < self._most_fills
        ):
            spec = pool.spec(digest)
            try:
                self._check_disk()
                member = lives.admit(self._node, pool.template, spec)
            except (BellglassError, OSError) as error:
                self._not_made(pool.template, error)
                return
            self.members[member.id] = member
            # Of a pool that runs empty the next create would start cold, which takes as much: no need to step back.
            member.background = self._half_waits(pool)
            member.filling = self._node.spawn(self._fill(member), f"pool:fill:{member.id}")

    async def _fill(self, member: Member) -> None:
        pool = member.row.pool or ""
        try:
            await lives.make(self._node, member, self.noticed)
        except Exception as error:  # noqa: BLE001 - told in the pool's report, and in the log
            self._not_made(pool, error)
            self._drop(member, f"it could not be made: {error}")
            return
        if not member.background:
            self._usual_s += (time.monotonic() - member.began - self._usual_s) * NEWEST_PART
        if pool in self._tallies:
            self._tallies[pool].made()
        self._wake.set()

    def _soonest(self, pool: WantedPool, spec: SandboxSpec) -> Member | None:
        """A refill that is so far that nothing started now would overtake it, and that no other create waits for. One
        that steps back may take long on a busy host."""
        late = time.monotonic() - self._usual_s * WORTH_PART
        filling = (
            m
            for m in self._of(pool.template, "filling")
            if same_machine(m.spec, spec) and not (m.awaited or m.background)
        )
        return next((member for member in filling if member.began <= late), None)

    async def _made(self, member: Member) -> bool:
        """Whether the refill ended well, in the usual time; then it is the caller's, until its next await."""
        assert member.filling is not None
        member.awaited = True
        try:
            await asyncio.wait([member.filling], timeout=self._usual_s)
            return member.state == "ready" and member.can_serve()
        finally:
            member.awaited = False

    def _not_made(self, pool: str, error: Exception) -> None:
        tally = self._tallies.get(pool)
        if tally is None:
            return
        pause_s = FAILED_PAUSES_S[min(tally.failures, len(FAILED_PAUSES_S) - 1)]
        tally.failed(str(error), FULL_PAUSE_S if isinstance(error, NoCapacity) else pause_s)
        log.warning("pool %s: a refill was not made: %s", pool, error)

    def _drop(self, member: Member, why: str) -> asyncio.Task[None]:
        log.info("member %s of pool %s goes: %s", member.id, member.row.pool, why)
        member.leave("draining")
        return self._node.spawn(self._end(member), f"pool:drain:{member.id}")

    async def _end(self, member: Member) -> None:
        async with self._node.lock(member.id):
            if self.members.get(member.id) is member:
                await lives.end(self._node, member)
                self._gone(member)

    def _gone(self, member: Member) -> None:
        del self.members[member.id]
        self._wake.set()

    def _look_at_templates(self) -> None:
        """The newest digest of each name. A template appears by a rename, which its parent's time tells."""
        try:
            mtime_ns = self._node.templates.folder.stat().st_mtime_ns
        except FileNotFoundError:
            mtime_ns = 0
        if mtime_ns != self._folder_mtime_ns:
            self._digests = {t.name: t.digest for t in reversed(self._node.templates.installed())}
            self._folder_mtime_ns = mtime_ns

    # --- counting ---------------------------------------------------------------------------------------

    def _of(self, pool: str, *states: str) -> Sequence[Member]:
        return [member for member in self.members.values() if member.row.pool == pool and member.state in states]

    def _spare(self, pool: str | None = None) -> list[Member]:
        """Those that are ready and spoken for by nobody; of one pool or of all."""
        ready = (m for m in self.members.values() if m.state == "ready" and not m.awaited)
        return [member for member in ready if pool in (None, member.row.pool)]

    def _half_waits(self, pool: WantedPool) -> bool:
        return 2 * len(self._spare(pool.template)) >= pool.size

    def _supply(self, pool: WantedPool) -> int:
        return len(self._of(pool.template, "ready", "filling"))

    def _machines(self, pool: WantedPool) -> int:
        mine = sum(member.row.pool == pool.template for member in self.members.values())
        return mine + sum(name == pool.template for name in self._claimed.values())

    def _missed(self, pool: str, reason: str) -> None:
        if pool in self._tallies:
            self._tallies[pool].misses[reason] += 1

    def _why_cold(self, pool: WantedPool, spec: SandboxSpec, *, has_inputs: bool) -> str:
        if not same_machine(pool.spec(spec.template_digest), spec):
            return "shape"
        if has_inputs:
            return "inputs"
        return "empty" if self._digests.get(pool.template) == spec.template_digest else "template"

    def _report(self, pool: WantedPool) -> dict[str, Any]:
        counts = {state: len(self._of(pool.template, state)) for state in ("ready", "filling", "taken", "draining")}
        counts["ready"] = sum(member.can_serve() for member in self._of(pool.template, "ready"))  # its agent has dialed
        claimed = sum(name == pool.template for name in self._claimed.values())
        digest = self._digests.get(pool.template)
        tally = self._tallies[pool.template].to_json()
        return {"template": pool.template, "template_digest": digest, **counts, "claimed": claimed, **tally}
