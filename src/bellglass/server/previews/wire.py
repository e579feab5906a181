"""A visitor's connection: a transport with what was read from it, which stops reading while nobody takes that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from bellglass.server.http.rests import Pace, Rest
from bellglass.server.previews.source import Source

READ_AHEAD_BYTES = 128 * 1024
UNSENT_BYTES = 128 * 1024


class Wire(asyncio.Protocol, Source):
    """`serve(wire)` is called once it is connected. `gone` is set when nothing can be sent any more."""

    def __init__(self, serve: Callable[[Wire], None], pace: Pace) -> None:
        Source.__init__(self)
        self.gone = asyncio.Event()
        self.peer = ""
        self.in_request = False
        """The visitor may still be sending a request, for all that its readers know."""
        self._serve = serve
        self._pace = pace
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self._paused = False
        self._rest: Rest | None = None
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._on_end: Callable[[], None] | None = None

    # --- asyncio.Protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else ""
        self._serve(self)

    def data_received(self, data: bytes) -> None:
        if self._rest is not None:
            self._rest.dropped(len(data))
            return
        self.held += data
        if len(self.held) > READ_AHEAD_BYTES and not self._paused:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()
        self._readable.set()

    def eof_received(self) -> bool:
        self._ended = True
        self._readable.set()
        if self._on_end is not None:
            self._on_end()
        # TLS has no half of a connection, and one that was ended from here is over.
        return not self.is_tls and self._rest is None

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ended = True
        self.gone.set()
        self._readable.set()
        self._writable.set()
        if self._on_end is not None:
            self._on_end()

    # --- reading ----------------------------------------------------------------------------------------

    async def more(self) -> bytes:
        # Everything is in `held` already; what was there before is not what is asked for.
        had = len(self.held)
        self._go_on()
        while len(self.held) == had and not self._ended:
            self._readable.clear()
            await self._readable.wait()
        piece = bytes(self.held[had:])
        del self.held[had:]
        return piece

    async def some(self, most: int = 256 * 1024) -> bytes:
        taken = await super().some(most)
        self._go_on()
        return taken

    def watch_end(self, callback: Callable[[], None] | None) -> None:
        """Call it when the visitor has gone, or goes; None: no more."""
        self._on_end = callback
        if callback is not None and self._ended:
            callback()

    def _go_on(self) -> None:
        if self._paused and len(self.held) <= READ_AHEAD_BYTES and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # --- writing ----------------------------------------------------------------------------------------

    @property
    def is_tls(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("sslcontext") is not None

    @property
    def chose_http2(self) -> bool:
        """In the TLS handshake."""
        handshake = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return handshake is not None and handshake.selected_alpn_protocol() == "h2"

    async def send(self, data: bytes) -> None:
        """Waits while much is unsent. Raises ConnectionResetError when the visitor has gone."""
        if self._transport is None:
            raise ConnectionResetError("the visitor has gone")
        self._transport.write(data)
        if not self._writable.is_set():
            await self._writable.wait()
        if self._transport is None:
            raise ConnectionResetError("the visitor has gone")

    def end(self) -> None:
        """No more bytes from this side."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    async def close(self) -> None:
        """What was sent arrives: `http.rests` says how."""
        if self._transport is None:
            return
        self.held.clear()
        self._go_on()
        if self._transport.can_write_eof() and not self._ended:
            self._transport.write_eof()
        elif self._ended or not self.in_request:
            self._transport.close()
        self._rest = Rest(self._transport, self._pace)
        try:
            await self.gone.wait()
        finally:
            self._rest.end()

    def abort(self) -> None:
        """At once, in the middle of whatever it is."""
        if self._transport is not None:
            self._transport.abort()
