"""One HTTP/1 connection of a visitor: request after request, each looked up, authorised and passed on by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from bellglass import http1
from bellglass.errors import BellglassError, RequestError
from bellglass.http1 import BadHead, Request
from bellglass.server.ports.store import Publication
from bellglass.server.ports.tokens import Pass
from bellglass.server.previews import access, head, pages
from bellglass.server.previews.access import Shown
from bellglass.server.previews.exchange import Exchange, upgrade_of
from bellglass.server.previews.foreign import Foreign
from bellglass.server.previews.house import House, outward
from bellglass.server.previews.origins import Named
from bellglass.server.previews.source import Cut
from bellglass.server.previews.wire import Wire

HEAD_S = 30.0
KEEP_ALIVE_S = 640.0
"""As of the API: some clients keep a connection for minutes."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
log = structlog.get_logger("bellglass.previews")


class Visit:
    """`admitted`: its last request was let in. `speaks_http2`: the preface of HTTP/2 is yet to be read."""

    def __init__(self, wire: Wire, house: House) -> None:
        self.wire = wire
        self.admitted = False
        self.speaks_http2 = False
        self._house = house
        self._answered = 0

    async def one(self, busy: Callable[[], None]) -> bool:
        """Wait for a request and serve it. False when the connection is to be closed."""
        request: Request | None = None
        try:
            async with asyncio.timeout(KEEP_ALIVE_S if self._answered else HEAD_S):
                raw = await self.wire.head()
            if raw is None:
                return False
            busy()
            if raw == PREFACE:
                self.wire.held[:0] = raw
                self.speaks_http2 = True
                return False
            self.wire.in_request = True
            request = head.parse_request(raw)
            self.wire.in_request = not _has_no_body(request)
            keep = await self._serve(request)
            self._answered += 1
            return keep
        except (TimeoutError, Cut, ConnectionResetError):
            return False
        except BadHead as error:
            self.wire.in_request = True
            return await self._refuse(RequestError(f"that is no valid request: {error}"), request, close=True)
        except BellglassError as error:
            keep = request is not None and _has_no_body(request) and not _closes(request)
            return await self._refuse(error, request, close=not keep)

    # --- inside -----------------------------------------------------------------------------------------

    async def _serve(self, request: Request) -> bool:
        self.admitted = False
        began, status = time.perf_counter(), 0
        named, foreign = self._house.named(request.get(b"host") or b""), self._house.foreign
        if named is not None and foreign is not None and foreign.serves(named):
            return await self._pass_on(named, foreign, request)
        publication = self._house.published(request.get(b"host") or b"")
        shown = access.take(request, self._house.scheme_of(publication))
        used = await self._house.admit(publication, shown)
        if shown.in_query and request.method in (b"GET", b"HEAD") and upgrade_of(request) is None:
            return await self._hand_over(publication, shown, used)
        self.admitted = True
        exchange = None
        try:
            with self._house.stay(publication, used, self.wire.abort) as stay:
                async with stay.bounded(), await self._house.dial(publication, self.wire.gone) as stream:
                    inward = self._house.inward(publication, shown.request, self.wire.peer)
                    stay.check()
                    exchange = Exchange(self.wire, stream, inward, outward(publication))
                    return await exchange.run()
        except (BellglassError, BadHead, TimeoutError) as error:
            if exchange is not None and exchange.begun:
                self.wire.abort()  # an answer that was cut must not look like a whole one
                return False
            if isinstance(error, TimeoutError):
                raise self._house.expired(publication) from None
            raise
        finally:
            status = exchange.status if exchange is not None else 0
            log.info(
                "visit",
                sandbox=publication.sandbox_id,
                port=publication.port,
                method=request.method.decode(),
                status=status,
                ms=round((time.perf_counter() - began) * 1000, 2),
            )

    async def _pass_on(self, named: Named, foreign: Foreign, request: Request) -> bool:
        """To the server itself, which asks for its own tokens."""
        stream = await foreign.connect()
        exchange = Exchange(self.wire, stream, foreign.inward(named, request), [])
        try:
            return await exchange.run()
        except (BellglassError, BadHead):
            if exchange.begun:
                self.wire.abort()  # an answer that was cut must not look like a whole one
                return False
            raise
        finally:
            stream.cancel()

    async def _hand_over(self, publication: Publication, shown: Shown, used: Pass | None) -> bool:
        """302 to the URL without the token, with a cookie unless the visitor has one."""
        location, set_cookie = self._house.moved_to(publication, shown.request.target, used)
        keep = _has_no_body(shown.request) and not _closes(shown.request)
        await self.wire.send(pages.moved(location, set_cookie, close=not keep))
        return keep

    async def _refuse(self, error: BellglassError, request: Request | None, *, close: bool) -> bool:
        try:
            await self.wire.send(pages.http1(self._house.refusal(error, request), close=close))
        except ConnectionResetError:
            return False
        self._answered += 1
        return not close


def _has_no_body(request: Request) -> bool:
    return http1.request_length(request) == 0


def _closes(request: Request) -> bool:
    return request.minor == 0 or b"close" in http1.words(request.headers, b"connection")
