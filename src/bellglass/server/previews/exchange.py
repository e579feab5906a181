"""One request passed to a program and its answer passed back, each read by its own framing and framed anew.

The program gets `Connection: close` and a connection of its own, so nothing of one visitor can be left on it for the
next. After `101 Switching Protocols` bytes go both ways as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from bellglass import http1
from bellglass.errors import BellglassError, PortUnreachable
from bellglass.http1 import CHUNKED, FRAMING, BadHead, Headers, Request, Response
from bellglass.server.previews import head
from bellglass.server.previews.source import Cut, LinkSource, Upstream, body
from bellglass.server.previews.wire import Wire

STALL_S = 300.0


def upgrade_of(request: Request) -> bytes | None:
    """The protocol that a request wants to change to, if the program is to be asked. It is not where there is a body:
    some servers would read that as a further request."""
    wanted = http1.words(request.headers, b"upgrade")
    if request.minor == 0 or b"upgrade" not in http1.words(request.headers, b"connection") or len(wanted) != 1:
        return None
    return None if http1.is_http(wanted[0]) or http1.request_length(request) else wanted[0]


class Exchange:
    """`begun`: bytes of the answer have gone out, so nothing else can be answered."""

    def __init__(self, wire: Wire, stream: Upstream, request: Request, more: Headers) -> None:
        """`request` as the program is to get it; `more` goes to the visitor beside the answer's own headers."""
        self.begun = False
        self.status = 0
        self._wire = wire
        self._stream = stream
        self._source = LinkSource(stream)
        self._request = request
        self._length = http1.request_length(request)
        self._more = more
        self._wrong: Exception | None = None
        self._sent_all = False
        """The visitor's body was read to its end: what follows is the next request."""

    async def run(self) -> bool:
        """Whether the visitor's connection can carry another request. Raises BadHead (the visitor's), Cut and
        ConnectionResetError (it went), PortUnreachable (the program's fault), what the link raises."""
        request, upgrade = self._request, upgrade_of(self._request)
        headers = http1.plainly_framed(head.end_to_end(request.headers), self._length)
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", upgrade)] if upgrade else [(b"Connection", b"close")]
        await self._stream.send(http1.write_request(request._replace(minor=1, headers=headers)))
        upload = asyncio.create_task(self._upload())
        self._wire.watch_end(self._visitor_ended)
        try:
            response = await self._final_response()
            if response.status == 101:
                await upload
                self._wire.watch_end(None)
                await self._switch(response, upgrade)
                return False
            return await self._answer(response)
        except BellglassError:
            if self._wrong is not None:
                raise self._wrong from None
            raise
        finally:
            self._wire.watch_end(None)
            upload.cancel()
            await asyncio.gather(upload, return_exceptions=True)

    # --- the request's body -----------------------------------------------------------------------------

    async def _upload(self) -> None:
        pieces = body(self._wire, self._length)
        try:
            while (item := await self._next_of(pieces)) is not None:
                if self._length != CHUNKED:
                    assert isinstance(item, bytes)
                    await self._stream.send(item)
                else:
                    await self._stream.send(_chunk(item))
            self._sent_all = True
            self._wire.in_request = False
        except (BadHead, Cut, ConnectionResetError) as error:
            self._give_up(error)
        except BellglassError:
            return  # the program takes no more; what it answers is told by the other half

    async def _next_of(self, pieces: AsyncIterator[bytes | Headers]) -> bytes | Headers | None:
        """None at the end. A visitor that stopped in the middle would hold the connection to the program for ever."""
        try:
            async with asyncio.timeout(STALL_S):
                return await anext(pieces, None)
        except TimeoutError:
            raise Cut from None

    def _visitor_ended(self) -> None:
        if self._wire.gone.is_set() or not self._wire.held:
            self._give_up(ConnectionResetError("the visitor has gone"))

    def _give_up(self, error: Exception) -> None:
        self._wrong = self._wrong or error
        self._stream.cancel()

    # --- the answer -------------------------------------------------------------------------------------

    async def _final_response(self) -> Response:
        while True:
            try:
                raw = await self._source.head()
                response = http1.parse_response(raw) if raw is not None else None
            except (BadHead, Cut) as error:
                raise _bad_answer(str(error) or "it ended in the middle of its headers") from None
            if response is None:
                raise _bad_answer("it closed the connection without an answer")
            self.status = response.status
            if response.status == 101 and upgrade_of(self._request) is None:
                raise _bad_answer("it changed to a protocol that nobody asked for")
            if not 100 <= response.status < 200 or response.status == 101:
                return response
            if self._request.minor > 0:
                headers = http1.without(head.end_to_end(response.headers), FRAMING)
                await self._wire.send(http1.write_response(response.status, response.reason, headers))

    async def _answer(self, response: Response) -> bool:
        bodiless = self._request.method == b"HEAD" or response.status in (204, 304)
        try:
            length = http1.response_length(response.headers)
        except BadHead as error:
            raise _bad_answer(str(error)) from None
        # What ends with the connection gets a framing, so that the visitor's end is told from a broken one.
        as_chunks = not bodiless and length < 0 and self._request.minor > 0
        wants_more = self._request.minor > 0 and b"close" not in http1.words(self._request.headers, b"connection")
        keep = wants_more and self._sent_all and (bodiless or length >= 0 or as_chunks)
        headers = head.end_to_end(response.headers)
        if response.status == 204:
            headers = http1.without(headers, FRAMING)
        elif bodiless:
            headers = http1.without(headers, FRAMING if length == CHUNKED else (b"transfer-encoding",))
        else:
            headers = http1.without(headers, FRAMING)
            if as_chunks:
                headers.append((b"Transfer-Encoding", b"chunked"))
            elif length >= 0:
                headers.append((b"Content-Length", str(length).encode()))
        headers += self._more
        if not keep:
            headers.append((b"Connection", b"close"))
        self.begun = True
        await self._wire.send(http1.write_response(response.status, response.reason, headers))
        if bodiless:
            return keep
        try:
            async for item in body(self._source, length):
                if as_chunks:
                    await self._wire.send(_chunk(item))
                elif isinstance(item, bytes):
                    await self._wire.send(item)
        except (BadHead, Cut) as error:
            raise _bad_answer(str(error) or "its answer is shorter than it said") from None
        if as_chunks and length != CHUNKED:
            await self._wire.send(http1.write_trailers([]))
        return keep

    async def _switch(self, response: Response, upgrade: bytes | None) -> None:
        headers = head.end_to_end(response.headers)
        headers += [
            (b"Connection", b"Upgrade"),
            (b"Upgrade", http1.find(response.headers, b"upgrade") or upgrade or b""),
        ]
        self.begun = True
        await self._wire.send(http1.write_response(101, response.reason, headers))
        upwards = asyncio.create_task(self._upwards())
        try:
            while piece := await self._source.some():
                await self._wire.send(piece)
            self._wire.end()
            await upwards
        finally:
            upwards.cancel()
            await asyncio.gather(upwards, return_exceptions=True)

    async def _upwards(self) -> None:
        while piece := await self._wire.some():
            await self._stream.send(piece)
        if self._wire.gone.is_set():
            self._stream.cancel()
        else:
            await self._stream.end()


def _chunk(item: bytes | Headers) -> bytes:
    """A piece of a body as a chunk, or the end with its trailers."""
    if isinstance(item, bytes):
        return b"%x\r\n%b\r\n" % (len(item), item)
    return http1.write_trailers(http1.without(item, head.NOT_IN_TRAILERS))


def _bad_answer(what: str) -> PortUnreachable:
    return PortUnreachable(
        f"the program's answer is no HTTP: {what}",
        hint="look at its output; only HTTP programs can be visited",
        details={"reason": "failed"},
    )
