"""A private world for a whole installation: one network namespace plays the host, another one the internet.

    with World() as world, world.inside():          # this thread, and what it starts
        stack = Stack.start(settings=world.settings())

The internet has a name server (`world.dns.zone`), addresses to serve on, and what nobody may reach: private ranges and
a metadata service. Nothing leaves the machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from bellglass.testing.egress import BEHIND_THE_FLOOR, DNS_SERVER, HOST_ADDRESSES, WORLD, DnsServer
from bellglass.testing.namespaces import Namespace

ADDRESSES = tuple(f"{WORLD}{number}" for number in range(10, 20))
"""Of the internet, to serve on."""
Serve = Callable[[socket.socket], None]


def greet(client: socket.socket) -> None:
    """HTTP/1.0 that says hello."""
    if client.recv(4096):
        client.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")


def echo(client: socket.socket) -> None:
    """Until the other side ends. Speaks first, so that it is neither TLS nor HTTP."""
    client.sendall(b"ready\n")
    while data := client.recv(65536):
        client.sendall(data)


class World:
    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self.dialled: list[tuple[str, int, str]] = []
        """Every connection that came, by the address and port that it came to, and from where."""

    def __enter__(self) -> World:
        with contextlib.ExitStack() as undo:
            self.host, self.internet = Namespace(), Namespace()
            undo.callback(self.host.close)
            undo.callback(self.internet.close)
            self.host.run("ip", "link", "add", "h0", "type", "veth", "peer", "name", "w0", "netns", self.internet.path)
            for address in HOST_ADDRESSES:
                self.host.run("ip", "addr", "add", f"{address}/24", "dev", "h0")
            for address in (DNS_SERVER, *ADDRESSES):
                self.internet.run("ip", "addr", "add", f"{address}/24", "dev", "w0")
            for address in BEHIND_THE_FLOOR:
                self.internet.run("ip", "addr", "add", f"{address}/32", "dev", "lo")
            self.host.run("ip", "link", "set", "h0", "up")
            self.internet.run("ip", "link", "set", "w0", "up")
            self.host.run("ip", "route", "add", "default", "via", ADDRESSES[0])
            self.dns = DnsServer(self.internet)
            undo.callback(self.dns.close)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def settings(self, **more: Any) -> dict[str, Any]:
        """For `Stack.start`: names are asked of this world. `more` by dotted name."""
        return {"egress.upstream_dns": [DNS_SERVER], "egress.hosts_file": os.devnull, **more}

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """This thread is on the host of this world, and so is every process that it starts."""
        return self.host.inside()

    def serve(self, address: str, port: int, serve: Serve = greet, where: Namespace | None = None) -> None:
        """In the internet or `where`, each connection in a thread of its own, until the world ends."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = (where or self.internet).call(
            lambda: socket.create_server((address, port), family=family, backlog=512)
        )
        clients: list[socket.socket] = []

        def one(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                serve(client)

        def accept() -> None:
            while True:
                try:
                    client, peer = listening.accept()
                except OSError:
                    return
                self.dialled.append((address, port, peer[0]))
                clients.append(client)
                threading.Thread(target=one, args=(client,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()

        def end() -> None:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(20)
            listening.close()
            for client in clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

        self._undo.callback(end)
