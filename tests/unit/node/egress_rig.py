"""Proxy and resolver for tests of the node's side: their control ends over real sockets, and what a driver has."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from bellglass.datadir import DataDir
from bellglass.egress.control import ControlError, ControlServer, Sandboxes, listen
from bellglass.egress.loop import Loop
from bellglass.egress.policy import Policy
from bellglass.errors import InternalError
from bellglass.node.drivers.base import LISTENERS
from bellglass.node.net.egress import Egress

DENY: dict[str, Any] = {"mode": "deny", "rules": []}
OPEN: dict[str, Any] = {"mode": "open", "rules": []}
ALL_BUT: dict[str, Any] = {**OPEN, "deny": ["203.0.114.0/24"]}
RULES: dict[str, Any] = {
    "mode": "rules",
    "rules": [{"host": "a.example.com", "ports": [443], "protocol": "tcp", "origin": "allow"}],
}


class Daemon(Sandboxes):
    """The control end of one of the two in a thread; `told` is what happened, in order."""

    def __init__(self, path: Path, listeners: int, told: list[tuple[str, ...]], name: str) -> None:
        super().__init__()
        self.listeners = listeners
        self.sockets: dict[str, list[socket.socket]] = {}
        self._told, self._name, self.path = told, name, path
        self._stop, self._stopped = socket.socketpair()
        self._stopped.setblocking(False)
        self._loop = Loop()
        self.server = ControlServer(self._loop, listen(path), frozenset({path.parent.stat().st_uid}), self.handle)
        self._loop.spawn(self._await_stop())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run()
        self._loop.shutdown()

    async def _await_stop(self) -> None:
        await self._loop.readable(self._stopped)
        self._loop.stop()

    def attached(self, sandbox: str, listeners: list[socket.socket]) -> None:
        self.detach_sockets(sandbox)
        self.sockets[sandbox] = listeners
        self._told.append((self._name, "attached", sandbox))
        self.server.publish({"sandbox": sandbox, "by": self._name})

    def changed(self, sandbox: str, policy: Policy) -> None:
        self._told.append((self._name, policy.mode, sandbox))

    def detached(self, sandbox: str) -> None:
        self.detach_sockets(sandbox)
        self._told.append((self._name, "detached", sandbox))

    def counted(self, sandbox: str) -> dict[str, Any]:
        return {}

    def detach_sockets(self, sandbox: str) -> None:
        for sock in self.sockets.pop(sandbox, []):
            sock.close()

    @property
    def generations(self) -> dict[str, int]:
        return {sandbox: held.generation for sandbox, held in dict(self.held).items()}

    def close(self) -> None:
        if self._thread.is_alive():
            self._stop.send(b".")
            self._thread.join(20)
        for sandbox in list(self.sockets):
            self.detach_sockets(sandbox)
        self._stop.close()
        self._stopped.close()


class FirstRelease(Daemon):
    """One that was left from before there was `deny`: it answers as that release did."""

    def handle(self, document: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        if set(document.get("policy", {})) - {"mode", "rules"}:
            raise ControlError("bad_policy", "a policy has mode and rules, and nothing else")
        return super().handle(document, descriptors)


class Handle:
    """Real sockets, as a gateway has them; `failures` is how often it has none."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failures = 0
        self.unused_closed = 0

    def close_unused(self) -> None:
        self.unused_closed += 1

    async def listeners(self, names: Collection[str] = LISTENERS) -> dict[str, socket.socket]:
        if self.failures:
            self.failures -= 1
            raise InternalError("Address already in use")
        self.asked += names
        kinds = {name: socket.SOCK_DGRAM if name == "dns_udp" else socket.SOCK_STREAM for name in names}
        return {name: socket.socket(socket.AF_INET, kind) for name, kind in kinds.items()}


class Driver:
    def __init__(self) -> None:
        self.walls: list[tuple[list[str], list[str]]] = []
        self.failures = 0

    async def raise_wall(self, *, exceptions: Sequence[str], dns: Sequence[str]) -> None:
        if self.failures:
            self.failures -= 1
            raise InternalError("nft is not installed")
        self.walls.append((list(exceptions), list(dns)))


class Bench:
    def __init__(self, folder: Path) -> None:
        self.data = DataDir(folder)
        self.told: list[tuple[str, ...]] = []
        self.driver, self.settings = Driver(), {"egress.exceptions": ("10.0.0.0/8",), "egress.upstream_dns": ()}
        self.daemons: dict[str, Daemon] = {}
        for path in (self.data.proxy_socket, self.data.resolver_socket):
            path.parent.mkdir(parents=True)
        (self.data.egress_dir / "etc").mkdir()
        (self.data.egress_dir / "etc/resolv.conf").write_text("nameserver 192.0.2.53\nnameserver fe80::1%eth0\nbad\n")

    def begin(self, *names: str, release: type[Daemon] = Daemon) -> None:
        for name in names or ("proxy", "resolver"):
            path = self.data.proxy_socket if name == "proxy" else self.data.resolver_socket
            self.daemons[name] = release(path, 1 if name == "proxy" else 2, self.told, name)

    def kill(self, *names: str) -> None:
        for name in names:
            self.daemons.pop(name).close()

    def egress(self) -> Egress:
        return Egress(self.data, self.settings, self.driver)

    def all_hold(self, **generations: int) -> bool:
        return all(daemon.generations == generations for daemon in self.daemons.values())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)
