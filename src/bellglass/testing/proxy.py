"""A TCP proxy before the API that cuts connections, as proxies do: idle ones, or all of them at some age."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_PIECE = 64 * 1024
_TURN_S = 0.02


@dataclass(slots=True, eq=False)
class _Pair:
    client: socket.socket
    server: socket.socket
    began_at: float
    moved_at: float


@dataclass(slots=True)
class CuttingProxy:
    """`idle_s`: cut when nothing has moved in either direction for so long; `life_s`: cut at that age whatever moves.
    Both ends then see a reset. `cuts` counts them, `dials` the connections."""

    url: str = ""
    idle_s: float | None = None
    life_s: float | None = None
    cuts: int = 0
    dials: int = 0
    _pairs: list[_Pair] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _closing: bool = False

    @classmethod
    @contextmanager
    def before(
        cls, api_url: str, *, idle_s: float | None = None, life_s: float | None = None
    ) -> Iterator[CuttingProxy]:
        host, _, port = api_url.removeprefix("http://").rpartition(":")
        listener = socket.create_server(("127.0.0.1", 0))
        proxy = cls(f"http://127.0.0.1:{listener.getsockname()[1]}", idle_s, life_s)
        thread = threading.Thread(target=proxy._run, args=(listener, (host, int(port))), name="proxy")
        thread.start()
        try:
            yield proxy
        finally:
            proxy._closing = True
            thread.join()

    def _run(self, listener: socket.socket, server: tuple[str, int]) -> None:
        self._selector.register(listener, selectors.EVENT_READ)
        while not self._closing:
            for key, _ in self._selector.select(_TURN_S):
                if key.fileobj is listener:
                    self._accept(listener, server)
                elif key.data in self._pairs:
                    self._move(key.data, key.fileobj)  # type: ignore[arg-type]
            now = time.monotonic()
            for pair in list(self._pairs):
                idle = self.idle_s is not None and now - pair.moved_at > self.idle_s
                old = self.life_s is not None and now - pair.began_at > self.life_s
                if idle or old:
                    self.cuts += 1
                    self._drop(pair, reset=True)
        for pair in list(self._pairs):
            self._drop(pair, reset=True)
        listener.close()
        self._selector.close()

    def _accept(self, listener: socket.socket, server: tuple[str, int]) -> None:
        client, _ = listener.accept()
        self.dials += 1
        try:
            upstream = socket.create_connection(server, timeout=5)
        except OSError:
            client.close()  # the server is away: to a client that is no answer
            return
        now = time.monotonic()
        pair = _Pair(client, upstream, now, now)
        self._pairs.append(pair)
        for sock in (client, upstream):
            sock.settimeout(5)
            self._selector.register(sock, selectors.EVENT_READ, pair)

    def _move(self, pair: _Pair, source: socket.socket) -> None:
        target = pair.server if source is pair.client else pair.client
        try:
            data = source.recv(_PIECE)
            if data:
                target.sendall(data)
        except OSError:
            data = b""
        pair.moved_at = time.monotonic()
        if not data:
            self._drop(pair, reset=False)

    def _drop(self, pair: _Pair, *, reset: bool) -> None:
        self._pairs.remove(pair)
        for sock in (pair.client, pair.server):
            self._selector.unregister(sock)
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
