"""From an allowed name to addresses: the host's own hosts file, then the operator's DNS servers.

Only names that a policy has let pass come here. An answer is kept for its time to live, at most 30 s, and shared by all
sandboxes; each connection dials addresses of one answer alone. Source port and id of each query are the kernel's
random ones, a connected socket takes packets of that server only.
"""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from time import monotonic

from bellglass.egress.loop import Loop, Signal, Task
from bellglass.egress.policy import is_name
from bellglass.egress.proxy import dns
from bellglass.egress.proxy.dns import AAAA, A, Answer, BadAnswer, ServerFailure, Truncated
from bellglass.egress.proxy.route import Routes

Address = IPv4Address | IPv6Address

TRY_S = 1.5
"""For one server; the next one is asked then, and all of them a second time."""
ROUNDS = 2
MAX_KEEP_S = 30.0
MAX_KEPT = 4096
MAX_AT_ONCE, MAX_AT_ONCE_EACH = 1024, 16
"""Names being looked up, of all sandboxes and of one. Beyond it further ones wait."""
FILE_CHECK_S = 1.0
PORT = 53
_SOME_V6 = IPv6Address("2000::1")


class LookupFailed(Exception):
    """No server answered, or the name has no address."""


class WatchedFile:
    """The text of a file, read again when it has changed; empty while there is none."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._checked = 0.0
        self._stamp: tuple[int, int, int] | None = None
        self.text = ""

    def refresh(self) -> bool:
        """Whether the text is another one now. Looks at most once a second."""
        now = monotonic()
        if now - self._checked < FILE_CHECK_S and self._checked:
            return False
        self._checked = now
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return False
            with self._path.open("rb") as file:
                text = file.read(1 << 20).decode("utf-8", "replace")
        except OSError:
            stamp, text = None, ""
        self._stamp, changed, self.text = stamp, text != self.text, text
        return changed


def parse_hosts(text: str) -> dict[str, list[Address]]:
    """Name to its addresses, in the file's order. Lines that aren't of the format are passed over."""
    table: dict[str, list[Address]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        try:
            address = ip_address(words[0]) if words else None
        except ValueError:
            continue
        for word in words[1:]:
            if address is not None and is_name(name := word.lower()):
                table.setdefault(name, []).append(address)
    return table


def parse_servers(text: str) -> list[Address]:
    """The name servers of a resolv.conf."""
    found: list[Address] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                found.append(ip_address(words[1]))
            except ValueError:
                continue
    return found


class _Pending:
    __slots__ = ("answer", "asker", "done", "error", "task", "waiting")

    def __init__(self, loop: Loop, asker: str) -> None:
        self.asker = asker
        self.task: Task | None = None
        self.waiting = 0
        self.done = Signal(loop)
        self.answer: tuple[Address, ...] = ()
        self.error = "no answer"


class Lookup:
    """`servers` as told by the operator; none means those of `resolv_conf`."""

    def __init__(self, loop: Loop, routes: Routes, servers: list[Address], hosts_file: str, resolv_conf: str) -> None:
        self._loop = loop
        self._routes = routes
        self._told_servers = servers
        self._hosts_file = WatchedFile(hosts_file)
        self._resolv_conf = WatchedFile(resolv_conf)
        self._hosts: dict[str, list[Address]] = {}
        self._servers: list[Address] = list(servers)
        self._kept: dict[str, tuple[float, tuple[Address, ...]]] = {}
        self._pending: dict[str, _Pending] = {}

    async def addresses(self, name: str, sandbox: str) -> tuple[Address, ...]:
        """At least one, IPv4 first. The work is the sandbox's. Raises LookupFailed."""
        if self._hosts_file.refresh():
            self._hosts = parse_hosts(self._hosts_file.text)
        if name in self._hosts:
            return tuple(sorted(self._hosts[name], key=lambda address: address.version))
        kept = self._kept.get(name)
        if kept is not None and kept[0] > monotonic():
            return kept[1]
        while (pending := self._pending.get(name)) is None:
            if self._has_room_for(sandbox):
                pending = self._pending[name] = _Pending(self._loop, sandbox)
                # A task of its own: who asked first may be cut off while others still wait.
                pending.task = self._loop.spawn(self._ask(name, pending), sandbox)
                break
            await self._loop.sleep(0.02)
        pending.waiting += 1
        try:
            await pending.done.wait()
        finally:
            pending.waiting -= 1
            if not pending.waiting and not pending.done.is_set:
                # Maybe another policy refuses the name: not one more query may tell it.
                assert pending.task is not None
                pending.task.cancel()
                if self._pending.get(name) is pending:  # the task had not begun
                    del self._pending[name]
        if not pending.answer:
            raise LookupFailed(f"{name}: {pending.error}")
        return pending.answer

    def _has_room_for(self, sandbox: str) -> bool:
        if len(self._pending) >= MAX_AT_ONCE:
            return False
        return sum(pending.asker == sandbox for pending in self._pending.values()) < MAX_AT_ONCE_EACH

    async def _ask(self, name: str, pending: _Pending) -> None:
        try:
            if not self._told_servers and self._resolv_conf.refresh():
                self._servers = parse_servers(self._resolv_conf.text)
            found = await self._query(name, A)
            # An answer without IPv4 is common only where IPv6 is; without a way there it would be asked for nothing.
            if not found.addresses and self._routes.has_way(_SOME_V6):
                found = await self._query(name, AAAA)
            pending.answer = found.addresses
            pending.error = "it has no address"
            if found.addresses:
                self._keep(name, found)
        except LookupFailed as error:
            pending.error = str(error)
        finally:
            if self._pending.get(name) is pending:
                del self._pending[name]
            pending.done.set()

    def _keep(self, name: str, found: Answer) -> None:
        if found.ttl_s <= 0:
            return
        self._kept.pop(name, None)
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[name] = (monotonic() + min(found.ttl_s, MAX_KEEP_S), found.addresses)

    async def _query(self, name: str, kind: int) -> Answer:
        why = "there is no DNS server"
        for _ in range(ROUNDS):
            for server in self._servers:
                try:
                    return await self._query_server(server, name, kind)
                except TimeoutError:
                    why = f"{server} does not answer"
                except (OSError, ServerFailure, BadAnswer) as error:
                    why = f"{server}: {error}"
        raise LookupFailed(why)

    async def _query_server(self, server: Address, name: str, kind: int) -> Answer:
        deadline = monotonic() + TRY_S
        query_id = int.from_bytes(os.urandom(2), "big")
        data = dns.question(query_id, name, kind)
        sock = self._socket(server, socket.SOCK_DGRAM)
        try:
            sock.connect((str(server), PORT))
            sock.send(data)
            while True:
                try:
                    message = sock.recv(4096)
                except BlockingIOError:
                    await self._loop.readable(sock, deadline)
                    continue
                try:
                    return dns.answer(message, query_id, name, kind)
                except BadAnswer:
                    if monotonic() > deadline:
                        raise
                except Truncated:
                    break
        finally:
            self._loop.close(sock)
        return await self._query_by_tcp(server, data, query_id, name, kind)

    async def _query_by_tcp(self, server: Address, data: bytes, query_id: int, name: str, kind: int) -> Answer:
        deadline = monotonic() + TRY_S
        sock = self._socket(server, socket.SOCK_STREAM)
        try:
            await connect(self._loop, sock, server, PORT, deadline)
            sock.send(len(data).to_bytes(2, "big") + data)
            received = b""
            while len(received) < 2 or len(received) < 2 + int.from_bytes(received[:2], "big"):
                try:
                    piece = sock.recv(65537)
                except BlockingIOError:
                    await self._loop.readable(sock, deadline)
                    continue
                if not piece:
                    raise BadAnswer("it hung up")
                received += piece
            try:
                return dns.answer(received[2:], query_id, name, kind)
            except Truncated as error:
                raise BadAnswer("truncated by TCP as well") from error
        finally:
            self._loop.close(sock)

    @staticmethod
    def _socket(server: Address, kind: int) -> socket.socket:
        family = socket.AF_INET if server.version == 4 else socket.AF_INET6
        return socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


async def connect(loop: Loop, sock: socket.socket, address: Address, port: int, deadline: float) -> None:
    """Raises OSError, TimeoutError. A non-blocking TCP socket of the address's family."""
    try:
        sock.connect((str(address), port))
        return
    except BlockingIOError:
        pass
    while True:
        await loop.writable(sock, deadline)
        if (error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) != 0:
            raise OSError(error, os.strerror(error))
        try:
            sock.getpeername()
            return
        except OSError:
            continue  # an edge that came before the connection did
