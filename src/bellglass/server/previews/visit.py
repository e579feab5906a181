"""One connection of a visitor: request after request, each one looked up, authorised and passed on by itself."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from bellglass.errors import (
    AgentLost,
    BellglassError,
    Conflict,
    NodeUnavailable,
    NotFound,
    PortUnreachable,
    RequestError,
    Unauthorized,
)
from bellglass.link import LinkStream
from bellglass.model import State
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.ports.service import Ports, expires_at_unix
from bellglass.server.ports.store import Publication
from bellglass.server.ports.tokens import Kind, Pass
from bellglass.server.previews import access, head, pages
from bellglass.server.previews.access import Shown
from bellglass.server.previews.exchange import Exchange, request_framing, upgrade_of
from bellglass.server.previews.head import BadHead, Headers, Request
from bellglass.server.previews.source import Cut
from bellglass.server.previews.wire import Wire
from bellglass.server.sandboxes import guard

HEAD_S = 30.0
KEEP_ALIVE_S = 75.0
START_WAIT_S = 10.0
"""A program that does not listen yet has so long to begin."""
_FIRST_PAUSE_S = 0.05
_LAST_PAUSE_S = 0.5
_FORWARDED = (
    b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port", b"x-real-ip",
)  # fmt: skip
log = structlog.get_logger("bellglass.previews")


class House(NamedTuple):
    """What all visits share."""

    ports: Ports
    cluster: ClusterEngine
    trusted_proxies: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]
    open: dict[tuple[str, int], set[Visit]]
    """Visits with a request under way, by sandbox and port."""


class Visit:
    """`admitted`: its last request was let in."""

    def __init__(self, wire: Wire, house: House) -> None:
        self.wire = wire
        self.admitted = False
        self._house = house
        self._publication: Publication | None = None
        self._pass: Pass | None = None
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
            request = head.parse_request(raw)
            request_framing(request)
            keep = await self._serve(request)
            self._answered += 1
            return keep
        except (TimeoutError, Cut, ConnectionResetError):
            return False
        except BadHead as error:
            return await self._refuse(RequestError(f"that is no valid request: {error}"), request, close=True)
        except BellglassError as error:
            keep = request is not None and _has_no_body(request) and not _closes(request)
            return await self._refuse(error, request, close=not keep)

    def check(self) -> None:
        """Something was taken from the visitors of this port: if it was from this one, it ends here."""
        was, used = self._publication, self._pass
        if was is None:
            return
        now = self._house.ports.still(was.sandbox_id, was.port)
        good = now is not None and now.address == was.address
        if good and now is not None and now.visibility != "public":
            good = used is not None and now.key == was.key
        if not good:
            self.wire.abort()

    # --- inside -----------------------------------------------------------------------------------------

    async def _serve(self, request: Request) -> bool:
        self.admitted = False
        began = time.perf_counter()
        publication = self._published(request)
        shown = access.take(request, self._house.ports.origin_of(publication).partition(":")[0])
        used: Pass | None = None
        if publication.visibility != "public":
            used = await self._admit(publication, shown)
            if shown.in_query and request.method in (b"GET", b"HEAD") and upgrade_of(request) is None:
                return await self._hand_over(publication, shown, used)
        self.admitted = True
        if publication.state != State.RUNNING:
            raise _not_running(publication)
        status = 0
        key = (publication.sandbox_id, publication.port)
        self._publication, self._pass = publication, used
        self._house.open.setdefault(key, set()).add(self)
        try:
            exchange = None
            try:
                async with asyncio.timeout(_left_s(publication, used)):
                    async with await self._dial(publication) as stream:
                        inward = self._inward(publication, shown.request)
                        exchange = Exchange(self.wire, stream, inward, _outward(publication))
                        return await exchange.run()
            except TimeoutError:
                if exchange is not None and exchange.begun:
                    self.wire.abort()
                    return False
                raise self._expired(publication) from None
            except (BellglassError, BadHead):
                if exchange is not None and exchange.begun:
                    self.wire.abort()  # an answer that was cut must not look like a whole one
                    return False
                raise
            finally:
                status = exchange.status if exchange is not None else 0
        finally:
            self._publication = self._pass = None
            self._house.open[key].discard(self)
            if not self._house.open[key]:
                del self._house.open[key]
            log.info(
                "visit",
                sandbox=publication.sandbox_id,
                port=publication.port,
                method=request.method.decode(),
                status=status,
                ms=round((time.perf_counter() - began) * 1000, 2),
            )

    def _published(self, request: Request) -> Publication:
        """Raises the same NotFound for whatever is not there."""
        origins = self._house.ports.origins
        host = (request.get(b"host") or b"").decode("latin-1")
        named = origins.parse(host) if origins is not None else None
        found = self._house.ports.visited(named) if named is not None else None
        if found is None:
            raise NotFound("nothing is published under this name", hint="ask for the link again where you got it")
        return found

    async def _admit(self, publication: Publication, shown: Shown) -> Pass | None:
        """Raises Unauthorized. A wrong header is a refusal; a wrong token in the query is forgiven to one whose cookie
        is good: a link for single use that is loaded again."""
        ports = self._house.ports
        for tokens, kinds in (
            (shown.in_header, (Kind.TOKEN, Kind.SINGLE_USE)),
            (shown.in_query, (Kind.TOKEN, Kind.SINGLE_USE)),
            (shown.in_cookies, (Kind.COOKIE,)),
        ):
            for token in tokens:
                used = ports.check(publication, token)
                if used is not None and used.kind in kinds and await ports.spend(publication, used):
                    return used
            if tokens and tokens is shown.in_header:
                break
        raise Unauthorized(
            "this page needs a link that is good" if shown.in_query or shown.in_cookies else "this page is private",
            hint="ask for a new link where you got it; programs send X-Bellglass-Token",
        )

    async def _hand_over(self, publication: Publication, shown: Shown, used: Pass | None) -> bool:
        """302 to the URL without the token, with a cookie unless the visitor has one."""
        ports = self._house.ports
        origin = ports.origin_of(publication)
        set_cookie = None
        if used is not None and used.kind is not Kind.COOKIE:
            left_s = max(round(used.expires_at_unix - time.time()), 1)
            scheme = origin.partition(":")[0]
            set_cookie = access.cookie(scheme, ports.cookie_for(publication, used), left_s)
        keep = _has_no_body(shown.request) and not _closes(shown.request)
        target = shown.request.target.decode("latin-1")
        await self.wire.send(pages.moved(origin + target, set_cookie, close=not keep))
        return keep

    def _expired(self, publication: Publication) -> BellglassError:
        if self._house.ports.still(publication.sandbox_id, publication.port) is None:
            return NotFound("nothing is published under this name", hint="ask for the link again where you got it")
        return Unauthorized("the link has expired", hint="ask for a new one where you got it")

    async def _dial(self, publication: Publication) -> LinkStream:
        """A connection to the program. While nothing was sent it can be tried again: it may be starting, and so may
        the node."""
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + START_WAIT_S, _FIRST_PAUSE_S
        params = {
            "sandbox_id": publication.sandbox_id, "generation": publication.generation, "port": publication.port,
        }  # fmt: skip
        while True:
            try:
                stream = await self._house.cluster.open(publication.node_id, "port.dial", params, body=True)
                try:
                    await stream.head()
                except BaseException:
                    await stream.reset()
                    raise
                return stream
            except (PortUnreachable, NodeUnavailable, AgentLost) as error:
                if isinstance(error, PortUnreachable) and error.details.get("reason") != "refused":
                    raise
                if loop.time() + pause_s > deadline or self.wire.gone.is_set():
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LAST_PAUSE_S)

    def _inward(self, publication: Publication, request: Request) -> Request:
        """As the program gets it."""
        host = request.get(b"host") or b""
        came_through = head.find(request.headers, b"x-forwarded-for") if self._is_proxy(self.wire.peer) else None
        headers = head.without(request.headers, _FORWARDED)
        if publication.host_header is not None:
            given = publication.host_header.encode()
            headers = [(name, given if name.lower() == b"host" else value) for name, value in headers]
        peer = self.wire.peer.encode()
        scheme = self._house.ports.origin_of(publication).partition(":")[0].encode()
        headers += [
            (b"X-Forwarded-For", came_through + b", " + peer if came_through else peer),
            (b"X-Forwarded-Proto", scheme),
            (b"X-Forwarded-Host", host),
        ]
        return request._replace(headers=headers)

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._house.trusted_proxies)

    async def _refuse(self, error: BellglassError, request: Request | None, *, close: bool) -> bool:
        try:
            await self.wire.send(pages.of_error(error, request, close=close))
        except ConnectionResetError:
            return False
        self._answered += 1
        return not close


def _outward(publication: Publication) -> Headers:
    """What the answer gets beside the program's own headers; more than one policy means that all of them hold."""
    if not publication.frame_ancestors:
        return []
    return [(b"Content-Security-Policy", b"frame-ancestors " + " ".join(publication.frame_ancestors).encode())]


def _not_running(publication: Publication) -> BellglassError:
    if publication.state == State.CREATING:
        return Conflict("the sandbox is still being created", hint="try again in a moment")
    return guard.gone(publication.sandbox_id, publication.state, publication.termination_reason, publication.ended_at)


def _left_s(publication: Publication, used: Pass | None) -> float | None:
    """Until the visitor's right ends."""
    ends = [end for end in (expires_at_unix(publication), used.expires_at_unix if used else None) if end is not None]
    return max(min(ends) - time.time(), 0.0) if ends else None


def _has_no_body(request: Request) -> bool:
    framing = request_framing(request)
    return not framing.is_chunked and framing.length == 0


def _closes(request: Request) -> bool:
    return request.minor == 0 or b"close" in head.words(request.headers, b"connection")
