"""TLS connections until they have shaken hands: few of each peer, bounded in all, and the newest is never the victim.

A connection costs a descriptor and what OpenSSL keeps before it has said a word, and one that says none has 10 s.
So they are accepted here, one by one: of a peer that has its share the oldest gives way, and where all are taken
that of the peer that holds most. Who really shakes hands is through within a few round trips.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence

import structlog

from bellglass.server.previews.wire import Wire

TLS_HANDSHAKE_S = 10.0
MAX_HANDSHAKES = 1024
MAX_OF_PEER = 64
_RETRY_S = 0.05
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
log = structlog.get_logger("bellglass.previews")


class Handshakes:
    """`trusted_proxies` speak for many and have no share of their own."""

    def __init__(
        self, context: ssl.SSLContext, make_wire: Callable[[], Wire], trusted_proxies: Sequence[Network], limit: int
    ) -> None:
        self._context = context
        self._make_wire = make_wire
        self._trusted_proxies = trusted_proxies
        self._limit = min(limit, MAX_HANDSHAKES)
        self._of_peer: dict[str, dict[asyncio.Task[None], None]] = {}
        """In the order in which they came. A task ends with the handshake."""
        self._count = 0
        self._dropped = 0

    async def serve(self, listener: socket.socket) -> None:
        """Until cancelled; then the listener is closed and nobody is shaking hands any more."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        try:
            while True:
                try:
                    sock, address = await loop.sock_accept(listener)
                except OSError:  # no descriptors or memory, or it had hung up already
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._begin(sock, self._peer(address[0]))
        finally:
            listener.close()
            for tasks in list(self._of_peer.values()):
                for task in list(tasks):
                    task.cancel()

    # --- inside -----------------------------------------------------------------------------------------

    def _begin(self, sock: socket.socket, peer: str) -> None:
        if peer and len(self._of_peer.get(peer, ())) >= MAX_OF_PEER:
            self._drop_oldest(peer)
        elif self._count >= self._limit:
            self._drop_oldest(max(self._of_peer, key=lambda one: len(self._of_peer[one])))
        task = asyncio.get_running_loop().create_task(self._shake_hands(sock), name="previews:handshake")
        self._of_peer.setdefault(peer, {})[task] = None
        self._count += 1
        task.add_done_callback(lambda done: self._forget(done, peer, sock))

    async def _shake_hands(self, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_wire, sock, ssl=self._context, ssl_handshake_timeout=TLS_HANDSHAKE_S
            )
        except (OSError, ssl.CertificateError):
            return  # no TLS, none in time, or it hung up

    def _forget(self, task: asyncio.Task[None], peer: str, sock: socket.socket) -> None:
        tasks = self._of_peer.get(peer)
        if tasks is not None and task in tasks:
            self._remove(peer, task)
        if task.cancelled():
            sock.close()  # it may not have begun
        elif (error := task.exception()) is not None:
            log.error("a handshake failed", error=repr(error))

    def _drop_oldest(self, peer: str) -> None:
        oldest = next(iter(self._of_peer[peer]))
        self._remove(peer, oldest)
        oldest.cancel()
        self._dropped += 1
        if self._dropped & (self._dropped - 1) == 0:  # the first time and then ever less often
            log.warning("no room for handshakes", limit=self._limit, of_peer=MAX_OF_PEER, dropped=self._dropped)

    def _remove(self, peer: str, task: asyncio.Task[None]) -> None:
        del self._of_peer[peer][task]
        self._count -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    def _peer(self, host: str) -> str:
        """Who it is: an address, of IPv6 the network that one customer has. Empty for a proxy in front."""
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is None:
                found = str(ipaddress.ip_network((address, 64), strict=False))
                return "" if any(address in network for network in self._trusted_proxies) else found
            address = address.ipv4_mapped
        return "" if any(address in network for network in self._trusted_proxies) else str(address)
