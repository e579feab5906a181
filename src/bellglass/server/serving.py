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

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bellglass.datadir import DataDir
from bellglass.errors import RequestError
from bellglass.ids import new_request_id
from bellglass.server.app import Application
from bellglass.settings import Settings

KEEP_ALIVE_S = 75
GRACE_S = 1
HEAD_S = 30
MAX_HEAD_BYTES = 64 * 1024


class Protocol(HttpToolsProtocol):
    """Answers bytes that are no HTTP in the one shape instead of plain text.

    The parser keeps heads and trailers of any length, before anybody has looked for a key: so those are counted and
    timed here. Bodies are the routes' own affair.
    """

    _head_bytes = 0
    """Since the last byte of a body, or the end of a request."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
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
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, msg: str) -> None:
        error = RequestError("that is no valid HTTP request", request_id=new_request_id())
        body = json.dumps(error.to_dict(), separators=(",", ":")).encode()
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, application: Application, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._application = application
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
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._application.hang_up()
        await super().shutdown(sockets)


def config_for(application: Application) -> uvicorn.Config:
    return uvicorn.Config(
        application.asgi,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )


async def serve(data: DataDir, settings: Settings, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Until SIGTERM or SIGINT."""
    application = Application(data, settings)
    await application.start()
    try:
        await Server(config_for(application), application, ready).serve(sockets=[listener])
    finally:
        await application.stop()
