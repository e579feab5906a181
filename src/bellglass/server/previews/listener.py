"""The sockets of published ports: one for all names, and one for each loopback address of its own."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from bellglass.errors import InvalidRequest, NoCapacity
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.http.connections import MAX_LINGERING, Connections, limit_for
from bellglass.server.ports.service import Ports
from bellglass.server.previews import pages
from bellglass.server.previews.handshakes import Handshakes
from bellglass.server.previews.house import House
from bellglass.server.previews.origins import Origins
from bellglass.server.previews.visit import Visit
from bellglass.server.previews.wire import Wire

SWEEP_S = 2.0
log = structlog.get_logger("bellglass.previews")


def tls_context(settings: Mapping[str, Any], *protocols: str) -> ssl.SSLContext | None:
    """From the settings' certificate, None without one. Raises InvalidRequest."""
    cert, key = settings["previews.tls_cert"], settings["previews.tls_key"]
    if not cert and not key:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(protocols)
    try:
        context.load_cert_chain(Path(cert), Path(key) if key else None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"previews.tls_cert {cert!r}, previews.tls_key {key!r}: {error}",
            hint="PEM files that the server's user can read",
            details={"field": "previews.tls_cert"},
        ) from error
    return context


class _Seat:
    """A connection as Connections counts it."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit

    def close_idle(self) -> None:
        self.visit.wire.abort()


class Previews:
    """`listener` is bound already. `bind_address` makes a listening socket for an own address."""

    def __init__(
        self,
        ports: Ports,
        cluster: ClusterEngine,
        settings: Mapping[str, Any],
        listener: socket.socket,
        bind_address: Callable[[str, int], socket.socket],
    ) -> None:
        self._ports = ports
        self._listener = listener
        self._bind_address = bind_address
        self._tls, self._tls_http2 = tls_context(settings, "http/1.1"), tls_context(settings, "h2", "http/1.1")
        if self._tls is not None:
            self._tls.sni_callback = self._alpn
        self._networks = [ipaddress.ip_network(text) for text in settings["previews.trusted_proxies"]]
        self._counted = Connections(limit_for(settings["previews.max_connections"], "previews.max_connections"))
        self.house = House(ports, cluster, self._networks, max(self._counted.limit // 2, 1))
        self._servers: dict[str, asyncio.Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wires: set[Wire] = set()
        self._listens_everywhere = listener.getsockname()[0] in ("0.0.0.0", "::")
        self._changing = asyncio.Lock()
        self._main: asyncio.Server | None = None
        ports.origins = Origins.of(settings, listener.getsockname()[1])
        ports.on_taken = self.house.check
        ports.on_key_revoked = self.house.key_revoked
        ports.serve_addresses = self._serve_addresses

    async def start(self) -> None:
        if self._tls is None:
            self._main = await asyncio.get_running_loop().create_server(self._wire, sock=self._listener)
        else:
            handshakes = Handshakes(self._tls, self._wire, self._networks, max(self._counted.limit // 2, 1))
            self._spawn(handshakes.serve(self._listener), "previews:accept")
        self._spawn(self._keep_addresses(), "previews:addresses")

    async def close(self) -> None:
        """What is under way is cut."""
        servers = [server for server in (self._main, *self._servers.values()) if server is not None]
        for server in servers:
            server.close()
        for wire in list(self._wires):
            wire.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- inside -----------------------------------------------------------------------------------------

    def _wire(self) -> Wire:
        return Wire(self._connected, self._counted.pace)

    def _connected(self, wire: Wire) -> None:
        self._spawn(self._visits(wire), "previews:visit")

    async def _visits(self, wire: Wire) -> None:
        visit = Visit(wire, self.house)
        seat = _Seat(visit)
        self._wires.add(wire)
        try:
            if not self._counted.admit(seat):
                await self._turn_away(wire)
                return
            if not wire.chose_http2:
                while await visit.one(lambda: self._counted.busy(seat)):
                    self._counted.idle(seat, known=visit.admitted)
            if wire.chose_http2 or visit.speaks_http2:
                await self._http2(wire, seat)
        except ConnectionResetError:
            return
        except Exception:  # the border of a connection: logged, cut, and the others go on
            log.exception("a visit failed")
            wire.abort()
        finally:
            self._counted.idle(seat, known=visit.admitted)
            await wire.close()
            self._counted.gone(seat)
            self._wires.discard(wire)

    async def _turn_away(self, wire: Wire) -> None:
        if self._counted.lingering >= MAX_LINGERING:
            wire.abort()
            return
        self._counted.lingering += 1
        try:
            full = NoCapacity("there is no room for another visitor now", hint="try again in a moment")
            await wire.send(pages.of_error(full, None, close=True))
            await wire.close()
        finally:
            self._counted.lingering -= 1

    async def _http2(self, wire: Wire, seat: _Seat) -> None:
        from bellglass.server.previews.http2_visit import Http2Visit  # 4 MiB that most servers never need

        def busy() -> None:
            self._counted.busy(seat)

        def idle() -> None:
            self._counted.idle(seat, known=visit.admitted)

        visit = Http2Visit(wire, self.house, busy, idle)
        await visit.run()

    def _alpn(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """HTTP/2 is offered where the program speaks it: nothing is translated."""
        named = self._ports.origins.parse(name) if name and self._ports.origins is not None else None
        found = self._ports.visited(named) if named is not None else None
        if found is not None and found.http2 and self._tls_http2 is not None:
            handshake.context = self._tls_http2

    async def _keep_addresses(self) -> None:
        """Now and then, while there are any, for sandboxes that ended and publications whose time is over."""
        failed = await self._serve_addresses()
        for address, reason in failed.items():
            log.warning("an own address can't be served", address=address, reason=reason)
        while True:
            await asyncio.sleep(SWEEP_S)
            if self._servers or failed:
                failed = await self._serve_addresses()

    async def _serve_addresses(self) -> dict[str, str]:
        """A listener for each own address that is to be served, and none for others. Answers why some are not."""
        assert self._ports.origins is not None
        failed = {}
        async with self._changing:
            # A listener on all addresses serves these too.
            wanted = set() if self._listens_everywhere else self._ports.addresses()
            for address in set(self._servers) - wanted:
                self._servers.pop(address).close()
            for address in wanted - set(self._servers):
                try:
                    listener = self._bind_address(address, self._ports.origins.listen_port)
                except OSError as error:
                    failed[address] = str(error)
                    continue
                self._servers[address] = await asyncio.get_running_loop().create_server(self._wire, sock=listener)
        return failed

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
