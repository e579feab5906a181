"""What every visit goes through, whatever it speaks: which port is meant, who may, and a connection to its program."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bellglass import http1
from bellglass.errors import (
    AgentLost,
    BellglassError,
    Conflict,
    LimitExceeded,
    NodeUnavailable,
    NotFound,
    PortUnreachable,
    Unauthorized,
)
from bellglass.http1 import Headers, Request
from bellglass.link import LinkStream
from bellglass.model import State
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.ports.service import Ports, expires_at_unix
from bellglass.server.ports.store import Publication
from bellglass.server.ports.tokens import Kind, Pass
from bellglass.server.ports.validate import MAX_TOKEN_LIFETIME_S
from bellglass.server.previews import access, senders
from bellglass.server.previews.access import Shown
from bellglass.server.previews.foreign import Foreign
from bellglass.server.previews.origins import Named
from bellglass.server.previews.pages import Parts, parts_of_error
from bellglass.server.previews.program_tls import TlsStream
from bellglass.server.sandboxes import guard

START_WAIT_S = 10.0
"""A program that does not listen yet has so long to begin."""
_FIRST_PAUSE_S = 0.05
_LAST_PAUSE_S = 0.5
_FORWARDED = (
    b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port", b"x-real-ip",
)  # fmt: skip
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Stay:
    """A visitor that was let in and is still there. `cut` ends what it has open."""

    def __init__(self, publication: Publication, used: Pass | None, cut: Callable[[], None]) -> None:
        self.publication = publication
        self.used = used
        self._cut = cut
        self._was_cut = False
        self._bound: asyncio.Timeout | None = None

    def cut(self) -> None:
        self._was_cut = True
        self._cut()
        if self._bound is not None and not self._bound.expired():
            self._bound.reschedule(asyncio.get_running_loop().time())  # it may wait for a program that is yet to start

    def check(self) -> None:
        """Right before the program hears of it. Raises ConnectionResetError for one that was cut meanwhile."""
        if self._was_cut:
            raise ConnectionResetError("it was taken from the visitor")

    def bounded(self) -> asyncio.Timeout:
        """Ends with TimeoutError when its right ends."""
        self._bound = asyncio.timeout(self.left_s)
        return self._bound

    def goes_on(self, now: Publication) -> None:
        """Published anew, perhaps for another time."""
        self.publication = now
        if self._bound is not None and not self._bound.expired():
            left_s = self.left_s
            self._bound.reschedule(None if left_s is None else asyncio.get_running_loop().time() + left_s)

    @property
    def left_s(self) -> float | None:
        """Until its right ends."""
        ends = [expires_at_unix(self.publication), self.used.expires_at_unix if self.used else None]
        known = [end for end in ends if end is not None]
        return max(min(known) - time.time(), 0.0) if known else None

    def holds(self, now: Publication | None) -> bool:
        """Whether it may stay, by what is published there now."""
        if now is None or now.address != self.publication.address:
            return False
        return now.visibility == "public" or (self.used is not None and now.key == self.publication.key)


class House:
    """What all visits share."""

    def __init__(
        self, ports: Ports, cluster: ClusterEngine, trusted_proxies: Sequence[Network], most_of_project: int
    ) -> None:
        """`most_of_project`: connections on which its ports may be visited at once."""
        self.ports = ports
        self._cluster = cluster
        self._trusted_proxies = trusted_proxies
        self._stays: dict[tuple[str, int], set[Stay]] = {}
        self._most_of_project = most_of_project
        self.foreign: Foreign | None = None
        self._of_project: dict[str, Counter[Callable[[], None]]] = {}

    def named(self, authority: bytes) -> Named | None:
        """The port that a Host names, published or not."""
        origins = self.ports.origins
        return origins.parse(authority.decode("latin-1")) if origins is not None else None

    def published(self, authority: bytes) -> Publication:
        """What a Host names. Raises the same NotFound for whatever is not there."""
        named = self.named(authority)
        found = self.ports.visited(named) if named is not None else None
        if found is None:
            raise _nothing_here()
        return found

    def scheme_of(self, publication: Publication) -> str:
        return self.ports.origin_of(publication).partition(":")[0]

    async def admit(self, publication: Publication, shown: Shown) -> Pass | None:
        """None where nobody is asked. Raises Unauthorized. A wrong header is a refusal; a wrong token in the query is
        forgiven to one whose cookie is good: a link for single use that is loaded again."""
        if publication.visibility == "public":
            return None
        if self.foreign is not None:
            for token in shown.for_all:
                if self.foreign.opens(publication.sandbox_id, token):
                    return Pass(Kind.TOKEN, time.time() + MAX_TOKEN_LIFETIME_S, "all ports", None)
        by_stranger = bool(shown.in_cookies) and not self._may_show_cookie(publication, shown.request)
        in_cookies = [] if by_stranger else shown.in_cookies
        for tokens, kinds in (
            (shown.in_header, (Kind.TOKEN, Kind.SINGLE_USE)),
            (shown.in_query, (Kind.TOKEN, Kind.SINGLE_USE)),
            (in_cookies, (Kind.COOKIE,)),
        ):
            for token in tokens:
                used = self.ports.check(publication, token)
                if used is not None and used.kind in kinds and await self.ports.spend(publication, used):
                    return used
            if tokens and tokens is shown.in_header:
                break
        if by_stranger:
            raise Unauthorized(
                "a page of another origin asked for this, with the cookie that is for pages of this one",
                hint="a page of another sandbox may link here; programs send X-Bellglass-Token",
            )
        raise Unauthorized(
            "this page needs a link that is good" if shown.in_query or shown.in_cookies else "this page is private",
            hint="ask for a new link where you got it; programs send X-Bellglass-Token",
        )

    def _may_show_cookie(self, publication: Publication, request: Request) -> bool:
        origins = self.ports.origins
        assert origins is not None

        def sandbox_of(named: Named) -> str | None:
            if named.sandbox_id is not None:
                return named.sandbox_id
            found = self.ports.visited(named)
            return found.sandbox_id if found is not None else None

        return senders.may_show_cookie(request, publication.sandbox_id, origins, sandbox_of)

    def moved_to(self, publication: Publication, target: bytes, used: Pass | None) -> tuple[str, bytes | None]:
        """The URL without the token, and a Set-Cookie unless the visitor has the cookie."""
        origin = self.ports.origin_of(publication)
        set_cookie = None
        if used is not None and used.kind is not Kind.COOKIE:
            left_s = max(round(used.expires_at_unix - time.time()), 1)
            scheme = origin.partition(":")[0]
            set_cookie = access.cookie(scheme, self.ports.cookie_for(publication, used), left_s)
        return origin + target.decode("latin-1"), set_cookie

    @contextmanager
    def stay(self, publication: Publication, used: Pass | None, cut: Callable[[], None]) -> Iterator[Stay]:
        """While a request is under way. Raises SandboxGone or Conflict when its sandbox does not run, LimitExceeded:
        programs that never answer must not take all connections from others' visitors."""
        if publication.state != State.RUNNING:
            raise _not_running(publication)
        connections = self._of_project.setdefault(publication.project_id, Counter())
        if cut not in connections and len(connections) >= self._most_of_project:
            raise LimitExceeded(
                f"ports of this project are visited on {self._most_of_project} connections, which is the most",
                hint="try again when some have ended",
            )
        connections[cut] += 1
        stay, key = Stay(publication, used, cut), (publication.sandbox_id, publication.port)
        self._stays.setdefault(key, set()).add(stay)
        try:
            yield stay
        finally:
            self._stays[key].discard(stay)
            if not self._stays[key]:
                del self._stays[key]
            connections[cut] -= 1
            if not connections[cut]:
                del connections[cut]
            if not connections:
                self._of_project.pop(publication.project_id, None)

    def check(self, sandbox_id: str, port: int) -> None:
        """Something was taken from the visitors of this port: those that it was taken from are cut."""
        stays = self._stays.get((sandbox_id, port))
        if stays:
            now = self.ports.still(sandbox_id, port)
            for stay in list(stays):
                if now is not None and stay.holds(now):
                    stay.goes_on(now)
                else:
                    stay.cut()

    def refusal(self, error: BellglassError, request: Request | None) -> Parts:
        """In the words of the platform whose way of naming ports was used."""
        named = self.named(request.get(b"host") or b"") if request is not None else None
        if named is not None and named.is_turned and self.foreign is not None and request is not None:
            said = self.foreign.error(named, error, request)
            if said is not None:
                return said
        return parts_of_error(error, request)

    def key_revoked(self, key_id: str) -> None:
        """Those who came with a token that this API key made are cut."""
        for stays in list(self._stays.values()):
            for stay in list(stays):
                if stay.used is not None and stay.used.maker == key_id:
                    stay.cut()

    def expired(self, publication: Publication) -> BellglassError:
        """What is to be said when a right has ended."""
        if self.ports.still(publication.sandbox_id, publication.port) is None:
            return _nothing_here()
        return Unauthorized("the link has expired", hint="ask for a new one where you got it")

    async def dial(self, publication: Publication, gone: asyncio.Event) -> LinkStream | TlsStream:
        """A connection to the program, in TLS where it was published so. While nothing was sent it can be tried again:
        it may be starting, and so may the node. Raises PortUnreachable and what the node raises."""
        loop = asyncio.get_running_loop()
        # Of one that was not published by name nobody said that something will listen.
        deadline = loop.time() + (0 if publication.is_new else START_WAIT_S)
        pause_s = _FIRST_PAUSE_S
        params = {
            "sandbox_id": publication.sandbox_id, "generation": publication.generation, "port": publication.port,
        }  # fmt: skip
        while True:
            try:
                stream = await self._cluster.open(publication.node_id, "port.dial", params, body=True)
                try:
                    await stream.head()
                    if publication.is_new:
                        await self.ports.visited_first(publication)
                except BaseException:
                    await stream.reset()
                    raise
                break
            except (PortUnreachable, NodeUnavailable, AgentLost) as error:
                if isinstance(error, PortUnreachable) and error.details.get("reason") != "refused":
                    raise
                if loop.time() + pause_s > deadline or gone.is_set():
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LAST_PAUSE_S)
        if publication.tls:
            return await TlsStream.begin(stream, publication.port, "h2" if publication.http2 else "http/1.1")
        return stream

    def inward(self, publication: Publication, request: Request, peer: str) -> Request:
        """As the program gets it."""
        host = request.get(b"host") or b""
        came_through = http1.find(request.headers, b"x-forwarded-for") if self._is_proxy(peer) else None
        headers = http1.without(request.headers, _FORWARDED)
        if publication.host_header is not None:
            given = publication.host_header.encode()
            headers = [(name, given if name.lower() == b"host" else value) for name, value in headers]
        headers += [
            (b"X-Forwarded-For", came_through + b", " + peer.encode() if came_through else peer.encode()),
            (b"X-Forwarded-Proto", self.scheme_of(publication).encode()),
            (b"X-Forwarded-Host", host),
        ]
        return request._replace(headers=headers)

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._trusted_proxies)


def outward(publication: Publication) -> Headers:
    """What the answer gets beside the program's own headers; more than one policy means that all of them hold."""
    if not publication.frame_ancestors:
        return []
    return [(b"Content-Security-Policy", b"frame-ancestors " + " ".join(publication.frame_ancestors).encode())]


def _nothing_here() -> NotFound:
    return NotFound("nothing is published under this name", hint="ask for the link again where you got it")


def _not_running(publication: Publication) -> BellglassError:
    if publication.state == State.CREATING:
        return Conflict("the sandbox is still being created", hint="try again in a moment")
    return guard.gone(publication.sandbox_id, publication.state, publication.termination_reason, publication.ended_at)
