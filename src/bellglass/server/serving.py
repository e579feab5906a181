"""uvicorn around the application: what it answers by itself gets our shape, and a stop is quick.

At a stop the link to the node is hung up first. Streaming answers so end at once and are cut, never reset: the node
must not take a stopping server for clients that hung up, or it would kill their executions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bellglass.datadir import DataDir
from bellglass.errors import BellglassError, RequestError
from bellglass.ids import new_request_id
from bellglass.server.app import Application
from bellglass.server.http.connections import LINGER_S, MAX_LINGERING, Connections, limit_for
from bellglass.server.http.context import KEY, Context
from bellglass.server.http.websockets import MAX_MESSAGE_BYTES, PING_EVERY_S, SocketProtocol
from bellglass.settings import Settings

KEEP_ALIVE_S = 640
"""Longer than any client of ours or E2B's keeps one that is idle: none may send into a connection that closes."""
GRACE_S = 1
HEAD_S = 30
MAX_HEAD_BYTES = 64 * 1024
INSIDE_CONNECTIONS = 1024
"""Beside those of server.max_connections: what sandboxes ask keeps nobody else out."""
INSIDE_STALL_S = 10.0


class Protocol(HttpToolsProtocol):
    """Answers bytes that are no HTTP in the one shape instead of plain text.

    The parser keeps heads and trailers of any length, before anybody has looked for a key: so those are counted and
    timed here. Bodies are the routes' own affair, but that they go on coming is looked at here too.
    """

    _head_bytes = 0
    """Since the last byte of a body, or the end of a request."""
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _turned_away = False

    def __init__(self, *args: Any, counted: Connections, stall_s: float, **more: Any) -> None:
        super().__init__(*args, **more)
        self._counted = counted
        self._stall_s = stall_s
        self._body_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._counted.admit(self):
            self._turn_away()
            return
        self._head_timer = self.loop.call_later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        self._body_arrived()
        self._counted.gone(self)
        if self._turned_away:
            self._counted.lingering -= 1
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """For Connections: another one needs the room."""
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._turned_away:
            return
        if self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response("")
            return
        self._head_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)

    def on_headers_complete(self) -> None:
        self._head_arrived()
        self._counted.busy(self)
        self._body_at = self.loop.time()
        self._stall_timer = self.loop.call_later(self._stall_s, self._look_at_body)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_at = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._body_arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:  # no further request is in the pipeline
            context = cast("Context | None", self.cycle.scope.get(KEY) if self.cycle is not None else None)
            self._counted.idle(self, known=context is not None and context.principal is not None)

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is the WebSocket's, and counted as one that is busy until it ends."""
        self._head_arrived()
        self._body_arrived()
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, SocketProtocol)
        protocol.on_gone = partial(self._counted.gone, self)

    def _body_arrived(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _look_at_body(self) -> None:
        """A client that stopped in the middle of its body would hold what waits for it for ever. One that we don't
        read from, since the sandbox is slow to take it, is not meant."""
        now = self.loop.time()
        if self.flow.read_paused:
            self._body_at = now
        left_s = self._body_at + self._stall_s - now
        if left_s <= 0:
            self.transport.close()
        else:
            self._stall_timer = self.loop.call_later(left_s, self._look_at_body)

    def _turn_away(self) -> None:
        self._turned_away = True
        self._counted.lingering += 1
        if self._counted.lingering > MAX_LINGERING:
            self.transport.abort()
            return
        self._write_error(503, b"Service Unavailable", self._counted.error())
        # A close with bytes unread would be a reset, and the client would not get to read why.
        self.transport.write_eof()
        self._head_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, msg: str) -> None:
        self._write_error(400, b"Bad Request", RequestError("that is no valid HTTP request"))
        self.transport.close()

    def _write_error(self, status: int, reason: bytes, error: BellglassError) -> None:
        error.request_id = new_request_id()
        body = json.dumps(error.to_dict(), separators=(",", ":")).encode()
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (status, reason, len(body), body)
        )


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, application: Application, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._application = application
        self._inside = application.listen_inside(inside_config_for(application))
        self._visits = application.serve_foreign_visits(visits_config_for(application))
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal again when it is done: that would end the process before ours stop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            await self._inside.start()
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._application.hang_up()
        await self._inside.close(GRACE_S)
        if self._visits is not None:
            await self._visits.close(GRACE_S)
        await super().shutdown(sockets)


def config_for(application: Application, settings: Settings) -> uvicorn.Config:
    counted = Connections(limit_for(settings["server.max_connections"], "server.max_connections"))
    return _config(application.asgi, counted, settings["server.stall_timeout"], ws=SocketProtocol)


def inside_config_for(application: Application) -> uvicorn.Config:
    """Of what sandboxes call through their node, which has read their bodies before it asks."""
    return _config(application.inside, Connections(INSIDE_CONNECTIONS), INSIDE_STALL_S)


def visits_config_for(application: Application) -> uvicorn.Config:
    """Of what comes through the listener of published ports, which counts connections itself."""
    settings = application.settings
    most = Connections(limit_for(settings["previews.max_connections"], "previews.max_connections"))
    return _config(application.asgi, most, settings["server.stall_timeout"])


def _config(
    asgi: ASGIApp, counted: Connections, stall_s: float, *, ws: type[SocketProtocol] | Literal["none"] = "none"
) -> uvicorn.Config:
    protocol = partial(Protocol, counted=counted, stall_s=stall_s)
    return uvicorn.Config(
        asgi,
        http=cast(type[Protocol], protocol),  # what makes one for each connection
        ws=ws,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_EVERY_S,
        ws_ping_timeout=None,  # a client that reads slowly answers late; one that is gone the kernel finds out
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )


async def serve(
    data: DataDir,
    settings: Settings,
    listener: socket.socket,
    ready: Callable[[], None],
    previews: socket.socket | None,
) -> None:
    """Until SIGTERM or SIGINT."""
    application = Application(data, settings, previews)
    await application.start()
    try:
        await Server(config_for(application, settings), application, ready).serve(sockets=[listener])
    finally:
        await application.stop()
