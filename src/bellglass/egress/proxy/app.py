"""The proxy as a process: what the node tells it of each sandbox, its listeners, its limits, its counters."""

from __future__ import annotations

import errno
import resource
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, ip_address
from typing import TYPE_CHECKING, Any

from bellglass.egress.control import ControlServer, Document, Sandboxes
from bellglass.egress.events import Events, after_a_while
from bellglass.egress.floor import Floor, parse_exceptions
from bellglass.egress.loop import Loop, Task
from bellglass.egress.policy import DENY, Policy
from bellglass.egress.proxy.connection import Connection
from bellglass.egress.proxy.lookup import Address, Lookup
from bellglass.egress.proxy.names import Names
from bellglass.egress.proxy.outcomes import Failed, Refused
from bellglass.egress.proxy.route import Routes

if TYPE_CHECKING:
    from bellglass.egress.daemon import Start

SO_ORIGINAL_DST = 80
DESCRIPTORS_EACH = 2
"""Of a connection: the client's socket and the one that was dialled."""
SPARE_DESCRIPTORS = 256
CONTESTED = 0.75
"""Of all connections that the process can hold; beyond it only who has less than an equal share gets another one."""
HOSTS_FILE, RESOLV_CONF, NAMES_SOCKET = "/etc/hosts", "/etc/resolv.conf", "/names/names.sock"


class Ward:
    """One sandbox as the proxy holds it."""

    def __init__(self, proxy: Proxy, sandbox: str) -> None:
        self.sandbox = sandbox
        self.loop = proxy.loop
        self.floor = proxy.floor
        self.policy = DENY
        self.connections: set[Connection] = set()
        self.allowed = 0
        self._refused: dict[str, int] = {}
        self._sent = self._received = 0
        self._proxy = proxy
        self._listener: socket.socket | None = None
        self._accepting: Task | None = None

    # --- from the node -----------------------------------------------------------------------------------

    def listen(self, listener: socket.socket) -> None:
        """In place of the one before."""
        self._stop_listening()
        # A link inside of the host loses nothing, but where BBR is the default it would be paced, by a timer a piece.
        # Only the operator can take reno away (tcp_allowed_congestion_control); it works without, at more cost.
        with suppress(PermissionError):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        self._listener = listener
        self._accepting = self.loop.spawn(self._accept(listener), self.sandbox)

    def apply(self, policy: Policy) -> None:
        """When it returns, no connection that the policy refuses is open."""
        self.policy = policy
        for connection in list(self.connections):
            if not connection.stands():
                verdict = connection.judge()
                connection.cut()
                self._count("policy_changed")
                self._event(connection, "policy_changed", connection.name, verdict.rule)

    def close(self) -> None:
        self._stop_listening()
        for connection in list(self.connections):
            connection.cut()

    def _stop_listening(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
        if self._listener is not None:
            self.loop.close(self._listener)
        self._accepting = self._listener = None

    def counters(self) -> Document:
        live = self.connections
        return {
            "open": len(live),
            "allowed": self.allowed,
            "refused": dict(self._refused),
            "bytes_out": self._sent + sum(connection.sent.count for connection in live),
            "bytes_in": self._received + sum(connection.received.count for connection in live),
        }

    # --- from connections --------------------------------------------------------------------------------

    async def name_of(self, address: Address) -> str | None:
        return await self._proxy.names.name_of(self.sandbox, str(address))

    async def addresses(self, name: str) -> tuple[Address, ...]:
        return await self._proxy.lookup.addresses(name, self.sandbox)

    def refused(self, connection: Connection, refusal: Refused) -> None:
        self._count(refusal.reason)
        rule = refusal.rule if refusal.rule is not None else connection.verdict.rule if connection.verdict else ""
        self._event(connection, refusal.reason, refusal.host or connection.name, rule)

    def failed(self, connection: Connection, failure: Failed) -> None:
        self._count(failure.reason)
        if failure.reason == "lookup_failed" and connection.verdict is not None:
            self._event(connection, failure.reason, connection.name, connection.verdict.rule)

    def ended(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._proxy.connection_count -= 1
        self._sent += connection.sent.count
        self._received += connection.received.count

    def _count(self, reason: str) -> None:
        self._refused[reason] = self._refused.get(reason, 0) + 1

    def _event(self, connection: Connection, reason: str, host: str | None, rule: str) -> None:
        self._proxy.events.refused(
            self.sandbox,
            kind="tcp",
            host=host,
            address=str(connection.dialled or connection.address),
            port=connection.port,
            reason=reason,
            rule=rule,
        )

    # --- accepting ---------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            await self.loop.breathe()
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                await self.loop.readable(listener)
                continue
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
                    return  # no listener any more: the node hands over another one
                await self.loop.sleep(0.05)  # no descriptors or memory: what waits stays in the queue
                continue
            self._welcome(client)

    def _welcome(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            address, port = original_destination(client)
        except OSError:
            # Not redirected, or gone already. Nothing is known of where it wanted to go, so nothing is told.
            client.close()
            return
        connection = Connection(self, client, address, port)
        self._proxy.connection_count += 1
        if self._proxy.is_full_for(self):
            connection.close(reset=True)
            self.refused(connection, Refused("limit", rule=f"{len(self.connections)} connections"))
            return
        self.connections.add(connection)
        connection.task = self.loop.spawn(connection.run(), self.sandbox)


def original_destination(client: socket.socket) -> tuple[IPv4Address, int]:
    """Where a redirected client had dialled. Raises OSError."""
    _, port, packed = struct.unpack("!HH4s8x", client.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
    return IPv4Address(packed), port


class Proxy(Sandboxes):
    """`config`: exceptions, upstream_dns, max_connections; places of the files and of the resolver where they are not
    the chroot's."""

    listeners = 1

    def __init__(self, loop: Loop, config: dict[str, Any], publish: Callable[[Document], None]) -> None:
        super().__init__()
        self.loop = loop
        self.routes = Routes()
        self.floor = Floor(parse_exceptions(config.get("exceptions", ())), own=self.routes.is_own)
        self.lookup = Lookup(
            loop,
            self.routes,
            [ip_address(server) for server in config.get("upstream_dns", ())],
            config.get("hosts_file", HOSTS_FILE),
            config.get("resolv_conf", RESOLV_CONF),
        )
        self.names = Names(loop, config.get("names_socket", NAMES_SOCKET))
        self.events = Events(publish, later=after_a_while(loop))
        self.wards: dict[str, Ward] = {}
        self.connection_count = 0
        self.max_connections = int(config.get("max_connections", 512))
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.capacity = max(1, (descriptors - SPARE_DESCRIPTORS) // DESCRIPTORS_EACH)

    def is_full_for(self, ward: Ward) -> bool:
        """Whether another connection of the sandbox is one too many. Not counted yet in `ward.connections`."""
        held = len(ward.connections)
        if held >= self.max_connections or self.connection_count > self.capacity:
            return True
        share = self.capacity // max(1, len(self.wards))
        return self.connection_count > self.capacity * CONTESTED and held >= max(1, share)

    def changed(self, sandbox: str, policy: Policy) -> None:
        ward = self.wards.get(sandbox)
        if ward is None:
            ward = self.wards[sandbox] = Ward(self, sandbox)
        ward.apply(policy)

    def attached(self, sandbox: str, listeners: list[socket.socket]) -> None:
        self.wards[sandbox].listen(listeners[0])

    def detached(self, sandbox: str) -> None:
        self.wards.pop(sandbox).close()
        self.events.forget(sandbox)

    def counted(self, sandbox: str) -> Document:
        return self.wards[sandbox].counters()

    def close(self) -> None:
        for ward in self.wards.values():
            ward.close()
        self.routes.close()


def serve(start: Start) -> None:
    """Until the process is ended."""
    loop = Loop()
    run(loop, start)
    loop.run()


def run(loop: Loop, start: Start) -> Proxy:
    """Begins to serve on the loop."""
    server: ControlServer | None = None

    def publish(event: Document) -> None:
        assert server is not None
        server.publish(event)

    proxy = Proxy(loop, start.config, publish)
    server = ControlServer(loop, start.control, frozenset({0, int(start.config["node_uid"])}), proxy.handle)
    return proxy
