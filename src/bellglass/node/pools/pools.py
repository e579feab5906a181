"""Every pool of this node: promising a member to a create, turning it into a sandbox, giving it up for one.

A claim has two steps, because a member's id is in every kernel name and so becomes the sandbox's: `take` promises a
member and answers its id, then `sandbox.create` with that id claims it. A promise that nobody redeems lapses. A claim
is one write to the journal: before it the member is a pool's, after it a project's, whatever crashes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bellglass.errors import NoCapacity
from bellglass.model import SandboxSpec, TerminationReason
from bellglass.node import creating
from bellglass.node.admission import Share
from bellglass.node.journal import SandboxRow
from bellglass.node.live import LiveSandbox
from bellglass.node.net import networks
from bellglass.node.pools import lives
from bellglass.node.pools.member import Member
from bellglass.node.pools.members import Members
from bellglass.node.pools.refills import Refills
from bellglass.node.pools.wanted import WantedPool, same_machine

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

TAKEN_S = 30.0
"""A promise lapses then; longer than a server waits for a link that broke in between."""
ANSWER_S = 1.0
EVICTED_PAUSE_S = 30.0
log = logging.getLogger("bellglass.pools")


class Pools:
    """`start` after recovery, `suspend` when the node stops. `most_fills`: refills at once."""

    def __init__(self, node: Sandboxes, most_fills: int) -> None:
        self._node = node
        self._table = Members(node)
        self.members = self._table.by_id
        self.refills = Refills(node, self._table, most_fills, self.noticed)

    # --- life -------------------------------------------------------------------------------------------

    async def recover(self, rows: Iterable[SandboxRow], *, rebooted: bool) -> None:
        """What an earlier node left: members that run stay members, half-made and half-ended ones go."""
        for row in self._node.rows():
            if row.pool is not None and row.state != "ended":
                self._table.claimed[row.id] = row.pool
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
                self._table.drop(member, "an earlier node left it")

    def start(self, check_disk: Callable[[], None]) -> None:
        """`check_disk` raises NoCapacity while nothing new is to be made on this host."""
        self.refills.start(check_disk)

    async def suspend(self) -> None:
        """No refill any more; members go on without the node."""
        await self.refills.suspend()

    async def close(self) -> None:
        """After the refills under way have ended."""
        for member in self.members.values():
            if member.live is not None:
                await member.live.suspend()

    # --- for the server ---------------------------------------------------------------------------------

    def apply(self, wanted: Iterable[WantedPool]) -> None:
        """From now on these are the pools; members of no other one stay."""
        self.refills.want(wanted)

    async def drain(self) -> None:
        """No pools any more; returns when no member is left."""
        self.apply(())
        self.release_all()
        self.refills.settle()
        while tasks := self._node.tasks("pool:"):
            await asyncio.wait(tasks)
            self.refills.settle()

    async def take(self, spec: SandboxSpec, *, has_inputs: bool) -> str | None:
        """The id under which this create finds a member, or None (counted, with the reason). Where none is ready, but
        one will be sooner than a machine that is started now, it waits for that one."""
        pool = (self.refills.wanted or {}).get(spec.template)
        if pool is None:
            return None
        if not has_inputs:
            fitting = [m for m in self._table.spare(pool.template) if same_machine(m.spec, spec) and m.can_serve()]
            member = fitting[0] if fitting else self.refills.soonest(pool, spec)
            if member is not None and (member.state == "ready" or await self.refills.made(member)):
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
            self._table.drop(member, "its id is in use")
        self._table.changed.set()

    def release_all(self) -> None:
        """Whoever had the promises may have died. If not, a create that comes all the same still finds its member."""
        for member in list(self.members.values()):
            self.release(member.id)

    def report(self) -> list[dict[str, Any]]:
        """One entry a pool, in the order of their names."""
        return [self._report(pool) for _, pool in sorted((self.refills.wanted or {}).items())]

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
                self._table.drop(member, "it could not be claimed")  # again, until it works
                raise
            self._table.forget(member)
            return None
        # A machine that dies from here on is the sandbox's to end, not the pool's.
        member.leave("claimed")
        try:
            row = replace(member.row, project_id=project_id, spec=spec.to_json(), about=about)
            live.claimed(spec)
            await networks.claimed(self._node, sandbox_id, spec)
            row = await creating.confirm(self._node, row, live, spec)
        except Exception:
            # Whether it was written is not known: nobody gets it.
            self._node.row_table.pop(sandbox_id, None)
            self._node.live_table.pop(sandbox_id, None)
            self._table.drop(member, "its claim could not be written")
            raise
        del self.members[sandbox_id]
        self._table.claimed[sandbox_id] = pool
        self.refills.claimed(pool)
        return row

    async def make_room(self, sandbox_id: str, grant: Callable[[], Share]) -> Share:
        """`grant` for a machine that is started cold: members give way to it where that helps. Raises what it
        raises."""
        free_before = -1.0
        while True:
            try:
                return grant()
            except NoCapacity as error:
                resource, free = error.details.get("resource"), error.details.get("free", 0)
                short = error.details.get("asked", 0) - free
                spare = self._table.spare()
                held = [getattr(self._node.admission.granted(member.id), str(resource), 0) for member in spare]
                if free <= free_before or not spare or sum(held) < short:
                    raise
                free_before = free
                log.info("member %s gives way to %s: %s", spare[-1].id, sandbox_id, error.message)
                self.refills.pause(EVICTED_PAUSE_S)
                await asyncio.wait([self._table.drop(spare[-1], "its room was needed")])

    def ended(self, sandbox_id: str) -> None:
        """A sandbox's processes are dead; if it was a member once, there is room below the pool's ceiling."""
        if self._table.claimed.pop(sandbox_id, None) is not None:
            self._table.changed.set()

    def noticed(self, live: LiveSandbox, reason: TerminationReason, message: str | None) -> None:
        """A machine died, or has to: a member's, or that of a sandbox which was one."""
        member = self.members.get(live.sandbox_id)
        if member is None or member.state == "claimed":
            self._node.end_soon(live, reason, message)
        elif member.live is live and member.state in ("ready", "taken"):
            self._table.drop(member, message or str(reason))

    # --- counting ---------------------------------------------------------------------------------------

    def _missed(self, pool: str, reason: str) -> None:
        if pool in self.refills.tallies:
            self.refills.tallies[pool].misses[reason] += 1

    def _why_cold(self, pool: WantedPool, spec: SandboxSpec, *, has_inputs: bool) -> str:
        if not same_machine(pool.spec(spec.template_digest), spec):
            return "shape"
        if has_inputs:
            return "inputs"
        return "empty" if self.refills.digests.get(pool.template) == spec.template_digest else "template"

    def _report(self, pool: WantedPool) -> dict[str, Any]:
        of = self._table.of
        counts = {state: len(of(pool.template, state)) for state in ("ready", "filling", "taken", "draining")}
        counts["ready"] = sum(member.can_serve() for member in of(pool.template, "ready"))  # its agent has dialed
        claimed = self._table.claimed_of(pool.template)
        digest = self.refills.digests.get(pool.template)
        tally = self.refills.tallies[pool.template].to_json()
        return {"template": pool.template, "template_digest": digest, **counts, "claimed": claimed, **tally}
