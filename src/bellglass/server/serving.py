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

from bellglass import http1
from bellglass.datadir import DataDir
from bellglass.errors import BellglassError, RequestError
from bellglass.http1 import BadHead
from bellglass.ids import new_request_id
from bellglass.server.app import Application
from bellglass.server.http.connections import LINGER_S, MAX_LINGERING, Connections, limit_for
from bellglass.server.http.context import KEY, Context
from bellglass.server.http.rests import KEPT_REST_BYTES, Rest
from bellglass.server.http.websockets import MAX_MESSAGE_BYTES, PING_EVERY_S, SocketProtocol
from bellglass.settings import Settings

KEEP_ALIVE_S = 640
"""Longer than any client of ours or E2B's keeps one that is idle: none may send into a connection that closes."""
GRACE_S = 1
HEAD_S = 30
MAX_HEAD_BYTES = http1.MAX_HEAD_BYTES
INSIDE_CONNECTIONS = 1024
"""Beside those of server.max_connections: what sandboxes ask keeps nobody else out."""
INSIDE_STALL_S = 10.0


class _Answering:
    """What a request's answer is written to, in place of the transport: `close` is not the connection's end while the
    client is still sending."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write: Callable[[bytes], object] = transport.write
        self.is_closing = transport.is_closing
        self.close = close

    def is_over(self) -> None:
        """Nothing more can be said."""
        self.write = len
        self.is_closing = lambda: True


class Protocol(HttpToolsProtocol):
    """Answers bytes that are no HTTP in the one shape instead of plain text.

    The parser keeps heads and trailers of any length, before anybody has looked for a key: so those are counted and
    timed here. Bodies are the routes' own affair, but that they go on coming is looked at here too, and what is left
    of one when its request has been answered is read here: `http.rests` has the bounds.
    """

    _head_bytes = 0
    """Since the last byte of a body, or the end of a request."""
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _turned_away = False
    _in_message = False
    """A request has begun and is not all there."""
    _rest: Rest | None = None
    _kept_rest_bytes = 0
    _wrong = ""
    _drops = False
    """What comes is not looked at any more."""

    def __init__(self, *args: Any, counted: Connections, stall_s: float, **more: Any) -> None:
        super().__init__(*args, **more)
        self._counted = counted
        self._stall_s = stall_s
        self._body_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answering = _Answering(transport, self._close)
        if not self._counted.admit(self):
            self._turn_away()
            return
        self._head_timer = self.loop.call_later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        self._body_arrived()
        self._rest_arrived()
        self._counted.gone(self)
        if self._turned_away:
            self._counted.lingering -= 1
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """For Connections: another one needs the room."""
        if self._rest is not None:
            self.transport.abort()
        else:
            self.transport.close()

    def shutdown(self) -> None:
        if self._rest is not None:
            self.transport.abort()
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self._rest is not None:
            self._rest.dropped(len(data))
        if self._drops:
            return
        if self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response("")
            return
        self._head_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._in_message = True
        self._unset_keepalive_if_required()
        super().on_message_begin()
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)

    def on_headers_complete(self) -> None:
        if self._drops:
            return
        try:
            self._check_head()
        except BadHead as error:
            self._wrong = f": {error}"
            raise
        self._head_arrived()
        self._counted.busy(self)
        self._body_at = self.loop.time()
        self._stall_timer = self.loop.call_later(self._stall_s, self._look_at_body)
        if self.expect_100_continue and self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False  # such a client takes what is said for the answer
        super().on_headers_complete()
        if self.cycle is not None:  # of a WebSocket there is none
            self.cycle.transport = cast(asyncio.Transport, self._answering)

    def _check_head(self) -> None:
        """By the rules of all our readers: a proxy in front must not see other borders between requests than httptools,
        or it gives answers to the wrong clients. What is raised is answered with 400."""
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadHead(f"HTTP/{version}")
        headers = [(name, value.strip(b" \t")) for name, value in self.headers]
        if len(headers) > http1.MAX_FIELDS or sum(len(name) + len(value) for name, value in headers) > MAX_HEAD_BYTES:
            raise BadHead(f"more than {http1.MAX_FIELDS} fields or {MAX_HEAD_BYTES} bytes")
        request = http1.Request(self.parser.get_method(), self.url, int(version == "1.1"), headers)
        http1.check_request(request, without_host=True)
        if http1.request_length(request) and self.parser.should_upgrade():
            raise BadHead("an upgrade with a body")  # httptools would read it as the next request

    def _unsupported_upgrade_warning(self) -> None:
        """What came with the head is lost, so what follows may begin in the middle of something."""
        self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_at = self.loop.time()
        if self._rest is not None and not self._drops:
            self._kept_rest_bytes -= len(body)
            if self._kept_rest_bytes < 0:
                self._drop_the_rest()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._head_bytes = 0
        self._body_arrived()
        if self._rest is not None and not self._drops:
            self._rest_arrived()
            self.timeout_keep_alive_task = self.loop.call_later(KEEP_ALIVE_S, self.timeout_keep_alive_handler)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._drops:
            return
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:  # no further request is in the pipeline
            self._counted.idle(self, known=self._is_known())
            if self._in_message:
                self._body_arrived()
                self.cycle.body.clear()
                self._kept_rest_bytes = KEPT_REST_BYTES
                self._rest = Rest(self.transport, self._counted.pace)

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is the WebSocket's, and counted as one that is busy until it ends."""
        self._head_arrived()
        self._body_arrived()
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, SocketProtocol)
        protocol.on_gone = partial(self._counted.gone, self)

    def _is_known(self) -> bool:
        context = cast("Context | None", self.cycle.scope.get(KEY) if self.cycle is not None else None)
        return context is not None and context.principal is not None

    def _close(self) -> None:
        """Behind the last answer."""
        if self._in_message or self.pipeline:
            self._drop_the_rest()
        else:
            self.transport.close()

    def _drop_the_rest(self, within_s: float | None = None) -> None:
        """Until the client hangs up: that nothing more is said it can see. `http.rests` says why."""
        if self._drops or self.transport.is_closing():
            return
        self._drops = True
        self._head_arrived()
        self._body_arrived()
        self._rest_arrived()
        if self.cycle is not None:
            self.cycle.body.clear()
            if not self.cycle.response_complete:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
        self._answering.is_over()
        self.transport.write_eof()
        self.flow.resume_reading()
        self._counted.idle(self, known=self._is_known())
        self._rest = Rest(self.transport, self._counted.pace, within_s)

    def _rest_arrived(self) -> None:
        if self._rest is not None:
            self._rest.end()
            self._rest = None

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
        self._drop_the_rest(LINGER_S)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # not in the middle of an answer
            return
        self._write_error(400, b"Bad Request", RequestError(f"that is no valid HTTP request{self._wrong}"))
        self._drop_the_rest()

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
