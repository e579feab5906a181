"""The node's view of one of the two egress processes: what it was told of which sandbox, and telling it the rest.

The process may be started anew at any moment, and so may the node. After each connect the process says what it holds;
what it should not hold is detached, what it lacks is attached with listeners made anew, and everything is told its
policy. In between `settle` brings one sandbox up to date. Until a sandbox is attached nothing listens for it, so what
it dials is refused. So it is where the process does not take a policy, which one of an earlier release may not know:
it lets go of the sandbox, and is told again when it was started anew, or when the policy changes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bellglass.egress.control import ControlError, Document
from bellglass.egress.control_client import ControlClient
from bellglass.errors import BellglassError, NodeUnavailable, NotFound
from bellglass.node.drivers.base import HasNetwork
from bellglass.node.tasks import Tasks

RETRY_S = 1.0
LOST_S = 0.01
UNSURE: tuple[int, dict[str, Any]] = (-1, {})
POLICY_REFUSED = "policy_refused"
"""The reason of the event. Its `rule` says which process refused it, and why."""
AT_ONCE = 8
"""Sandboxes that are attached at the same time after a connect."""
log = logging.getLogger("bellglass.network")


_OF_POLICIES = frozenset({"bad_policy", "bad_packet"})
"""Refusals of what it is told, whatever the state that it is in."""


class PolicyNotTaken(NodeUnavailable):
    """The process refuses the policy; nothing of the sandbox passes it now."""


@dataclass(slots=True, eq=False)
class Attached:
    """A sandbox that should be attached. `locks` by peer: what it is told goes in order."""

    sandbox_id: str
    handle: HasNetwork
    policy: dict[str, Any]
    generation: int
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    gone: bool = False

    def lock(self, peer: str) -> asyncio.Lock:
        return self.locks.setdefault(peer, asyncio.Lock())


class Peer:
    """`listeners`: the names of those that it is given, in order. `table` is the caller's, and changes."""

    def __init__(
        self, name: str, path: Path, listeners: tuple[str, ...], table: Mapping[str, Attached], on_event: Any
    ) -> None:
        self.name = name
        self._listeners = listeners
        self._table = table
        self._on_event = on_event
        self._held: dict[str, tuple[int, dict[str, Any]]] = {}
        """What it is known to hold: generation and policy; UNSURE where that is not known."""
        self._client = ControlClient(path, on_connected=self._connected, on_event=on_event)
        self._tasks = Tasks(log)

    @property
    def connected(self) -> bool:
        return self._client.connected

    def start(self) -> None:
        self._tasks.spawn(self._client.run(), f"{self.name}: connection")

    async def close(self) -> None:
        await self._tasks.close()

    async def settled(self, one: Attached) -> None:
        """Returns when it holds the sandbox with its newest policy, however long the process is away. Raises
        PolicyNotTaken, other BellglassErrors, ControlError."""
        while True:
            await self._client.wait_connected()
            try:
                await self._settle(one)
                return
            except ControlError as error:
                if error.code != "lost":
                    raise
                await asyncio.sleep(LOST_S)  # the client has yet to notice

    async def detach(self, sandbox_id: str) -> None:
        """For one that is in the table no more. A process that is away is told when it is back."""
        if self._held.pop(sandbox_id, None) is None and not self.connected:
            return
        try:
            await self._client.call("detach", sandbox=sandbox_id)
        except ControlError as error:
            if error.code != "lost":
                log.warning("%s does not let go of %s: %s", self.name, sandbox_id, error)

    async def counters(self, sandbox_id: str) -> dict[str, Any] | None:
        """What it has counted since it was started; None while it is away."""
        if not self.connected:
            return None
        try:
            found = (await self._client.call("counters", sandbox=sandbox_id))["sandboxes"]
        except ControlError:
            return None
        counted: dict[str, Any] | None = found.get(sandbox_id)
        return counted

    async def _settle(self, one: Attached) -> None:
        async with one.lock(self.name):
            policy, generation = one.policy, one.generation
            if one.gone or self._held.get(one.sandbox_id) == (generation, policy):
                return
            known = one.sandbox_id in self._held
            self._held[one.sandbox_id] = UNSURE
            fields = {"sandbox": one.sandbox_id, "generation": generation, "policy": policy}
            try:
                if not known or not await self._told(fields):
                    await self._attach(one, fields)
            except ControlError as error:
                if error.code not in _OF_POLICIES:
                    raise
                raise await self._close(one, error) from error
            if one.gone:
                await self.detach(one.sandbox_id)
            else:
                self._held[one.sandbox_id] = (generation, policy)

    async def _close(self, one: Attached, error: ControlError) -> PolicyNotTaken:
        """What it may still hold is a policy that is in force no more: nothing passes in its place. Every release knows
        how to detach."""
        await self._client.call("detach", sandbox=one.sandbox_id)
        self._held.pop(one.sandbox_id, None)
        log.error(
            "sandbox %s: the %s does not take its policy, and lets nothing pass: %s", one.sandbox_id, self.name, error
        )
        self._on_event({"sandbox": one.sandbox_id, "reason": POLICY_REFUSED, "rule": f"{self.name}: {error}"})
        return PolicyNotTaken(
            f"the {self.name} does not take the policy ({error}), and may be of an earlier release than the node:"
            " nothing passes until another policy is set, or until it was started anew (bellglass down, then up)"
        )

    async def _told(self, fields: Document) -> bool:
        """False: it does not hold the sandbox."""
        try:
            await self._client.call("policy", **fields)
        except ControlError as error:
            if error.code == "stale":
                # Of a later journal than this node has: what is in ours counts.
                await self._client.call("detach", sandbox=fields["sandbox"])
            elif error.code != "unknown_sandbox":
                raise
            return False
        return True

    async def _attach(self, one: Attached, fields: Document) -> None:
        made: dict[str, socket.socket] = {}
        try:
            made = await one.handle.listeners(self._listeners)
            descriptors = [made[name].fileno() for name in self._listeners]
            await self._client.call("attach", descriptors=descriptors, **fields)
        except (BellglassError, ControlError):
            self._held.pop(one.sandbox_id, None)
            raise
        finally:
            for listener in made.values():
                listener.close()

    async def _connected(self, client: ControlClient) -> None:
        self._held = dict.fromkeys(await client.collect("list"), UNSURE)
        for sandbox_id in set(self._held) - set(self._table):
            await client.call("detach", sandbox=sandbox_id)
            del self._held[sandbox_id]
        some = asyncio.Semaphore(AT_ONCE)

        async def settle(one: Attached) -> None:
            async with some:
                try:
                    await self._settle(one)
                except ControlError as error:
                    if error.code == "lost":
                        raise
                    self._again(one, error)
                except BellglassError as error:
                    self._again(one, error)

        done: set[Attached] = set()
        # Those that came meanwhile as well: nobody else attaches what did not wait for this connection.
        while some_more := set(self._table.values()) - done:
            done |= some_more
            results = await asyncio.gather(*map(settle, some_more), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        log.info("%s is connected, and holds %d sandboxes", self.name, len(self._held))

    def _again(self, one: Attached, error: Exception) -> None:
        if isinstance(error, PolicyNotTaken):
            return  # the same process answers the same again; the next connect tells another one
        log.error("sandbox %s has no network: %s: %s", one.sandbox_id, self.name, error)
        if isinstance(error, NotFound):
            return  # a machine that was started without one, by an earlier release

        self.settle_later(one)

    def settle_later(self, one: Attached) -> None:
        """Tried until it holds the sandbox, or the sandbox has gone."""

        async def later() -> None:
            await asyncio.sleep(RETRY_S)
            if self._table.get(one.sandbox_id) is one:
                try:
                    await self.settled(one)
                except (BellglassError, ControlError) as again:
                    self._again(one, again)

        self._tasks.spawn(later(), f"{self.name}: {one.sandbox_id}")
