"""TLS with a program inside that speaks nothing else, over a stream to its port.

Its certificate is not checked: the stream ends in the sandbox that was meant, and what serves there makes names and
keys as it likes. Visitors see the server's own certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import cache
from types import TracebackType
from typing import Self

from bellglass.errors import PortUnreachable
from bellglass.link import LinkStream

HANDSHAKE_S = 10.0
PIECE_BYTES = 64 * 1024
MAX_PENDING_BYTES = 64 * 1024
"""Answers to what the program says below its data; they go out with the next that is sent to it."""


class TlsStream:
    """As the stream below it. `begin` makes one."""

    def __init__(self, link: LinkStream, port: int, protocol: str) -> None:
        self._link = link
        self._port = port
        self._pieces = aiter(link)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _context(protocol).wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._sending = asyncio.Lock()

    @classmethod
    async def begin(cls, link: LinkStream, port: int, protocol: str) -> Self:
        """`protocol` is told as ALPN. Raises PortUnreachable; the stream is then reset."""
        made = cls(link, port, protocol)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await made._shake_hands()
        except TimeoutError:
            await link.reset()
            raise made._unreachable("no TLS handshake came to its end", "timeout") from None
        except BaseException:
            await link.reset()
            raise
        return made

    async def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._take()
            except ssl.SSLError as error:
                raise self._unreachable(f"no TLS with the program: {error.reason or error}") from None
            else:
                await self._flush()
                return

    async def send(self, data: bytes | memoryview) -> None:
        """Raises PortUnreachable, and what the stream raises."""
        view = memoryview(data)
        while view:
            async with self._sending:
                try:
                    count = self._tls.write(view[:PIECE_BYTES])
                except ssl.SSLError as error:
                    raise self._unreachable(f"TLS with the program is broken: {error.reason or error}") from None
                await self._link.send(self._outgoing.read())
            view = view[count:]

    async def end(self) -> None:
        async with self._sending:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # it waits for the program's own end, and may be broken: the stream ends in any case
            if data := self._outgoing.read():
                await self._link.send(data)
        await self._link.end()

    async def reset(self) -> None:
        await self._link.reset()

    def cancel(self) -> None:
        self._link.cancel()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body()

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            data, wants, over = self._read()
            if data:
                yield data
            if over:
                return
            if wants:
                if self._outgoing.pending > MAX_PENDING_BYTES:
                    raise self._unreachable("the program asks for more answers in TLS than it takes")
                await self._take()

    def _read(self) -> tuple[bytes, bool, bool]:
        """What is there; whether more has to come first; whether it was the last."""
        found = bytearray()
        while len(found) < PIECE_BYTES:
            try:
                piece = self._tls.read(PIECE_BYTES - len(found))
            except ssl.SSLWantReadError:
                return bytes(found), True, False
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):  # with a last word, or without, as many programs do
                return bytes(found), False, True
            except ssl.SSLError as error:
                if found:
                    break  # it is raised again
                raise self._unreachable(f"TLS with the program is broken: {error.reason or error}") from None
            if not piece:
                return bytes(found), False, True
            found += piece
        return bytes(found), False, False

    async def _take(self) -> None:
        if piece := await anext(self._pieces, b""):
            self._incoming.write(piece)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._link.send(data)

    def _unreachable(self, what: str, reason: str = "failed") -> PortUnreachable:
        return PortUnreachable(
            f"port {self._port}: {what}",
            hint="it is published with `tls`: publish it without if the program speaks in the clear",
            details={"port": self._port, "reason": reason},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._link.__aexit__(kind, error, traceback)


@cache
def _context(protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context
