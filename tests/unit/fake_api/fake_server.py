"""Serves a fake API on a port of this machine."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import uvicorn

from tests.unit.fake_api.fake_api import FakeApi


class Server:
    """Serves the app from a loop in a thread, on one port that it keeps when stopped and started again.

    The loop, and with it the executions, live on while the server is stopped: that is a server's restart."""

    def __init__(self, **options: Any) -> None:
        self.app: Any = None
        self._options = options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    def play(self, app: FakeApi) -> None:
        """Serve this one from now on; the processes of the one before end."""
        if self.app is not None:
            asyncio.run_coroutine_threadsafe(self.app.end(), self._loop).result(10)
        app.hang_up = self._hang_up
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> None:
        config = uvicorn.Config(
            self,
            host="127.0.0.1",
            port=self.port,
            log_level="critical",
            lifespan="off",
            timeout_keep_alive=75,
            **self._options,
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.ensure_future(self._server.serve())
        while not self._server.started:
            assert not self._serving.done()
            await asyncio.sleep(0.002)

    def stop(self) -> None:
        """Hang up on everybody."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    async def _stop(self) -> None:
        self._server.should_exit = True
        for listener in self._server.servers:  # first: whoever is hung up on comes back at once
            listener.close()
        self._hang_up()
        await self._serving

    def _hang_up(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    def close(self) -> None:
        self.stop()
        if self.app is not None:
            asyncio.run_coroutine_threadsafe(self.app.end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
