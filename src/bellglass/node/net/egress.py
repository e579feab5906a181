"""What the node does for the networks of its sandboxes: it hands listeners and policies to proxy and resolver, again
whenever one of them, or the node, was started anew, and keeps the wall around them up.

A sandbox is known from `attach` to `detach`. What is handed to a process and not yet answered is nothing that passes:
all of it fails closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from bellglass.datadir import DataDir
from bellglass.egress.control import ControlError
from bellglass.errors import BellglassError, NotFound, SandboxFailed
from bellglass.node.drivers.base import HasNetwork, RaisesWall
from bellglass.node.net.peer import Attached, Peer, PolicyNotTaken

ATTACH_S = 5.0
"""How long an attach waits for processes that are being started again."""
DETACH_S = 2.0
COUNTERS_S = 2.0
WALL_AGAIN_S = 60.0
"""What reloads the host's own rules may have taken the wall away: it is raised again this much later."""
LOOK_S = 5.0
"""Sooner where there is none yet, or the host has other DNS servers now."""
OnEvent = Callable[[dict[str, Any]], None]
log = logging.getLogger("bellglass.network")


class Egress:
    """`attach` for what was recovered, then `start`, then anything, then `close`: sandboxes keep their networks."""

    def __init__(self, data: DataDir, settings: Mapping[str, Any], driver: RaisesWall) -> None:
        self._data = data
        self._settings = settings
        self._driver = driver
        self._table: dict[str, Attached] = {}
        self._listening: list[OnEvent] = []
        self._proxy = Peer("proxy", data.proxy_socket, ("proxy",), self._table, self._event)
        self._resolver = Peer("resolver", data.resolver_socket, ("dns_udp", "dns_tcp"), self._table, self._event)
        self._started = self._walled = False
        self._wall: asyncio.Task[None] | None = None
        self._let_through: list[str] = []

    async def start(self) -> None:
        """Before the wall is up nothing is attached; it is tried again for as long as it takes."""
        self._started = True
        is_up = await self._raise_wall()
        self._wall = asyncio.get_running_loop().create_task(self._keep_wall(is_up=is_up), name="wall")

    async def close(self) -> None:
        if self._wall is not None:
            self._wall.cancel()
            with suppress(asyncio.CancelledError):
                await self._wall
        await asyncio.gather(self._proxy.close(), self._resolver.close())

    def on_event(self, call: OnEvent) -> None:
        """Called with each refusal that proxy and resolver tell of."""
        self._listening.append(call)

    async def attach(self, sandbox_id: str, handle: HasNetwork, policy: dict[str, Any], generation: int) -> None:
        """Returns when both processes have it. One that is away gets it when it is back: for that a sandbox waits for a
        while, and one that is to reach nothing does not wait. Raises SandboxFailed."""
        one = self._table[sandbox_id] = Attached(sandbox_id, handle, policy, generation)
        if not self._started:
            return  # the connect tells all
        peers = [self._proxy, self._resolver]
        if policy["mode"] == "deny":
            peers = [peer for peer in peers if peer.connected]
        try:
            async with asyncio.timeout(ATTACH_S):
                await _all(*(peer.settled(one) for peer in peers))
        except TimeoutError:
            log.warning("sandbox %s gets its network later: proxy or resolver don't answer", sandbox_id)
            for peer in peers:  # one that is only slow is connected: no connect will tell it
                peer.settle_later(one)
        except (ControlError, BellglassError) as error:
            raise SandboxFailed(f"the network of {sandbox_id} can't be set up: {error}") from error
        finally:
            handle.close_unused()

    async def set_policy(self, sandbox_id: str, policy: dict[str, Any], generation: int) -> None:
        """Returns when both have it and all that it refuses is cut, however long they are away; an older one than the
        newest is passed over. The proxy first: it is the one that lets through. Raises NotFound, SandboxFailed,
        PolicyNotTaken."""
        one = self._table.get(sandbox_id)
        if one is None:
            raise NotFound(f"no network of a sandbox {sandbox_id!r}")
        if generation >= one.generation:
            one.policy, one.generation = policy, generation
        try:
            await self._proxy.settled(one)
            await self._resolver.settled(one)
        except PolicyNotTaken:
            raise
        except (ControlError, BellglassError) as error:
            raise SandboxFailed(f"the network of {sandbox_id} can't be changed: {error}") from error

    async def traffic(self, sandbox_id: str) -> dict[str, Any] | None:
        """What proxy and resolver have counted since they were started; None while one of them does not tell."""
        try:
            async with asyncio.timeout(COUNTERS_S):
                proxy = await self._proxy.counters(sandbox_id)
                resolver = await self._resolver.counters(sandbox_id)
        except TimeoutError:
            return None
        return None if proxy is None or resolver is None else {**resolver, **proxy}

    async def detach(self, sandbox_id: str) -> None:
        """Every connection of it is cut. Unknown is success."""
        one = self._table.pop(sandbox_id, None)
        if one is None:
            return
        one.gone = True
        try:
            async with asyncio.timeout(DETACH_S):
                await _all(*(peer.detach(sandbox_id) for peer in (self._proxy, self._resolver)))
        except TimeoutError:
            log.warning("proxy or resolver have not let go of %s", sandbox_id)

    def _event(self, event: dict[str, Any]) -> None:
        for call in self._listening:
            call(event)

    async def _raise_wall(self) -> bool:
        dns = self._dns()
        try:
            await self._driver.raise_wall(exceptions=list(self._settings["egress.exceptions"]), dns=dns)
        except BellglassError:
            log.exception("the wall around proxy and resolver is not up")
            return False
        self._let_through = dns
        if not self._walled:
            self._walled = True
            for peer in (self._proxy, self._resolver):
                peer.start()
        return True

    async def _keep_wall(self, *, is_up: bool) -> None:
        raised_at = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            if not is_up or time.monotonic() > raised_at + WALL_AGAIN_S or self._dns() != self._let_through:
                is_up, raised_at = await self._raise_wall(), time.monotonic()

    def _dns(self) -> list[str]:
        """The servers that the proxy asks: of the settings, or of the copy of the host's file that it reads too."""
        if found := list(self._settings["egress.upstream_dns"]):
            return found
        with suppress(OSError):
            for line in (self._data.egress_dir / "etc" / "resolv.conf").read_text("utf-8", "replace").splitlines():
                words = line.split()
                if len(words) > 1 and words[0] == "nameserver":
                    with suppress(ValueError):
                        found.append(str(ip_address(words[1].partition("%")[0])))
        return found


async def _all(*works: Any) -> None:
    """Like gather, but none goes on when another has failed or all of it is cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
