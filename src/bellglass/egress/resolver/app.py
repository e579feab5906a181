"""The resolver as the node and the proxy see it: sandboxes attached with a UDP and a TCP listener, and names.sock."""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

from bellglass.egress.control import ControlServer, Document, Sandboxes
from bellglass.egress.daemon import Start
from bellglass.egress.events import Events, after_a_while
from bellglass.egress.loop import Loop
from bellglass.egress.policy import Policy
from bellglass.egress.resolver.listeners import Listeners
from bellglass.egress.resolver.zone import Zone


def serve(start: Start) -> None:
    loop = Loop()
    resolver = Resolver(loop)
    control = ControlServer(loop, start.control, frozenset({0, int(start.config["node_uid"])}), resolver.handle)
    resolver.publish = control.publish
    assert start.names is not None
    ControlServer(loop, start.names, frozenset({int(start.config["proxy_uid"])}), resolver.answer_name)
    loop.run()


class Resolver(Sandboxes):
    """`publish` is told each event."""

    listeners = 2

    def __init__(self, loop: Loop, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self.publish: Callable[[Document], None] = lambda event: None
        self._loop = loop
        self._clock = clock
        self._events = Events(lambda event: self.publish(event), clock, after_a_while(loop))
        self._zones: dict[str, Zone] = {}
        self._listeners: dict[str, Listeners] = {}

    def attached(self, sandbox: str, listeners: list[socket.socket]) -> None:
        self._close(sandbox)
        udp, tcp = listeners
        self._listeners[sandbox] = Listeners(self._loop, sandbox, udp, tcp, self._zones[sandbox])

    def changed(self, sandbox: str, policy: Policy) -> None:
        zone = self._zones.get(sandbox)
        if zone is None:
            self._zones[sandbox] = Zone(sandbox, policy, self._events, self._clock)
        else:
            zone.follow(policy)

    def detached(self, sandbox: str) -> None:
        self._close(sandbox)
        self._zones.pop(sandbox, None)
        self._events.forget(sandbox)

    def counted(self, sandbox: str) -> Document:
        return {**self._zones[sandbox].counts, "names": len(self._zones[sandbox].names)}

    def answer_name(self, document: Document, descriptors: list[int]) -> dict[str, Any]:
        """For the proxy: `{"sandbox", "address"}` to `{"name": text | null}`. It checks the name itself once more."""
        zone, address = self._zones.get(str(document.get("sandbox"))), document.get("address")
        if zone is None or not isinstance(address, str):
            return {"name": None}
        try:
            number = int.from_bytes(socket.inet_pton(socket.AF_INET, address))
        except (OSError, ValueError):
            return {"name": None}
        return {"name": zone.names.name_of(number)}

    def _close(self, sandbox: str) -> None:
        if (listeners := self._listeners.pop(sandbox, None)) is not None:
            listeners.close()
