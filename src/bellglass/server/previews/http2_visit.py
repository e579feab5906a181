"""One HTTP/2 connection of a visitor. Every stream is looked up and authorised by itself: browsers put the streams of
several origins on one connection, and a proxy in front those of several visitors.

The program is spoken to in HTTP/2, without TLS (h2c by prior knowledge, as gRPC servers are) unless it was published
with it; the streams of one
connection to one port share one connection to the program. Nothing is translated to HTTP/1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import structlog
from h2.errors import ErrorCodes

from bellglass import http1
from bellglass.errors import BellglassError, PortUnreachable, RequestError
from bellglass.http1 import BadHead, Headers, Request
from bellglass.link import LinkStream
from bellglass.server.http.rests import KEPT_REST_BYTES
from bellglass.server.ports.store import Publication
from bellglass.server.previews import access, head, pages
from bellglass.server.previews.house import House, Stay, outward
from bellglass.server.previews.http2 import LAST_WORDS_S, Endpoint, Reset, Stream
from bellglass.server.previews.program_tls import TlsStream
from bellglass.server.previews.source import Cut, LinkSource
from bellglass.server.previews.wire import Wire

IDLE_S = 75.0
ANSWER_S = 10.0
"""Who gives no window for a refusal or a redirect has so long to take it."""
MAX_IDLE_UPSTREAMS = 4
RESETS_BEFORE_WORK = 200
"""Streams that a visitor may give up beyond those that it saw to their end."""
log = structlog.get_logger("bellglass.previews")


class Upstream:
    """A connection to a program."""

    def __init__(self, link: LinkStream | TlsStream) -> None:
        self.link = link
        self.endpoint = Endpoint(LinkSource(link), link.send)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        why = PortUnreachable(
            "the program ended the connection",
            hint="it must speak HTTP/2, and TLS where it is published with `tls`",
            details={"reason": "failed"},
        )
        try:
            await self.endpoint.run(why)
        except (BadHead, Cut, BellglassError) as error:
            log.info("a program's connection ended", reason=str(error))
        finally:
            await self.link.reset()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Http2Visit:
    """`run` serves a connection whose preface is still to be read."""

    def __init__(self, wire: Wire, house: House, busy: Callable[[], None], idle: Callable[[], None]) -> None:
        self.admitted = False
        """Whether any of its streams was let in."""
        self._wire = wire
        self._house = house
        self._busy = busy
        self._idle = idle
        self._endpoint = Endpoint(wire, wire.send, self._requested, self._was_reset)
        self._upstreams: dict[tuple[str, int], list[Upstream]] = {}
        self._dialing: dict[tuple[str, int], asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._inside = 0
        self._resets = 0
        self._finished = 0

    async def run(self) -> None:
        self._idle()
        self._fell_idle()
        try:
            await self._endpoint.run(ConnectionResetError("the visitor has gone"))
        except (BadHead, Cut, ConnectionResetError):
            return  # it hung up, or was told why
        finally:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for upstream in [each for several in self._upstreams.values() for each in several]:
                await upstream.close()

    # --- streams ----------------------------------------------------------------------------------------

    def _requested(self, stream: Stream) -> None:
        if not self._tasks and self._idle_timer is not None:
            self._idle_timer.cancel()
        task = asyncio.create_task(self._stream(stream), name="previews:stream")
        self._tasks.add(task)
        task.add_done_callback(partial(self._stream_done, stream))

    def _stream_done(self, stream: Stream, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._finished += not stream.was_reset
        if not self._tasks:
            self._fell_idle()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a stream failed", exc_info=error)
            self._wire.abort()

    @contextmanager
    def _let_in(self) -> Iterator[None]:
        """A stream that was let in is under way. Those that were not keep no connection from giving way."""
        self.admitted = True
        self._inside += 1
        if self._inside == 1:
            self._busy()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._idle()

    def _fell_idle(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_S, self._give_up)

    def _give_up(self) -> None:
        self._endpoint.go_away()
        asyncio.get_running_loop().call_later(LAST_WORDS_S, self._wire.abort)

    def _was_reset(self) -> None:
        self._resets += 1
        if self._resets > RESETS_BEFORE_WORK + self._finished:
            self._endpoint.go_away(ErrorCodes.ENHANCE_YOUR_CALM)
            raise BadHead("streams are opened to be given up")

    async def _stream(self, stream: Stream) -> None:
        code: int | None = None
        request: Request | None = None
        begun = [False]
        try:
            request = _request_of(stream)
            await self._serve(stream, request, begun)
            code = ErrorCodes.NO_ERROR
        except Reset:
            pass  # the visitor gave it up, or has been told that the program did
        except ConnectionResetError:
            pass  # the visitor has gone
        except (BadHead, BellglassError) as error:
            told = error if isinstance(error, BellglassError) else RequestError(f"that is no valid request: {error}")
            if begun[0]:
                code = ErrorCodes.INTERNAL_ERROR
            else:
                code = ErrorCodes.NO_ERROR
                with suppress(Reset, ConnectionResetError, BadHead):
                    await self._answer(stream, self._house.refusal(told, request))
        finally:
            try:
                if code == ErrorCodes.NO_ERROR:
                    await self._drop_rest(stream)
            finally:
                self._endpoint.close(stream, code)

    async def _drop_rest(self, stream: Stream) -> None:
        """Of a body that nobody wants any more. Clients may not lose an answer by a reset that follows it, and do
        while they still send (curl 7.88)."""
        dropped = 0
        with suppress(TimeoutError, Reset, ConnectionResetError):
            async with asyncio.timeout(LAST_WORDS_S):
                while dropped < KEPT_REST_BYTES and (stream.items or not stream.ended_in):
                    item = await stream.next()
                    dropped += item.flow_bytes
                    self._endpoint.taken(stream, item.flow_bytes)

    async def _serve(self, stream: Stream, request: Request, begun: list[bool]) -> None:
        publication = self._house.published(request.get(b"host") or b"")
        shown = access.take(request, self._house.scheme_of(publication))
        used = await self._house.admit(publication, shown)
        if shown.in_query and request.method in (b"GET", b"HEAD"):
            location, set_cookie = self._house.moved_to(publication, shown.request.target, used)
            await self._answer(stream, pages.parts_of_move(location, set_cookie))
            return
        if self._wire.is_tls and not publication.http2:
            # The browser takes another connection then, on which it is offered HTTP/1 alone.
            await self._answer(stream, (421, [(b"Content-Length", b"0")], b""))
            return
        with self._let_in(), self._house.stay(publication, used, self._wire.abort) as stay:
            try:
                async with stay.bounded():
                    upstream = await self._upstream(publication)
                    inward = self._house.inward(publication, shown.request, self._wire.peer)
                    stay.check()
                    await self._relay(stream, upstream.endpoint, inward, stay, begun)
            except TimeoutError:
                raise self._house.expired(publication) from None

    async def _answer(self, stream: Stream, parts: pages.Parts) -> None:
        """Of ours."""
        status, headers, body = parts
        fields = [(b":status", b"%d" % status), *_lower(headers)]
        self._endpoint.headers(stream, fields, end=not body)
        if body:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._endpoint.data(stream, body)
            except TimeoutError:
                self._endpoint.close(stream, ErrorCodes.CANCEL)
                raise Reset(ErrorCodes.CANCEL) from None
            self._endpoint.end(stream)

    async def _upstream(self, publication: Publication) -> Upstream:
        key = (publication.sandbox_id, publication.port)
        async with self._dialing.setdefault(key, asyncio.Lock()):
            several = self._upstreams.setdefault(key, [])
            for upstream in several:
                if upstream.endpoint.has_room:
                    return upstream
            unused = [each for each in several if not each.endpoint.streams]
            for upstream in [each for each in unused if each.endpoint.going_away] or unused[MAX_IDLE_UPSTREAMS - 1 :]:
                several.remove(upstream)
                await upstream.close()
            several.append(Upstream(await self._house.dial(publication, self._wire.gone)))
            return several[-1]

    async def _relay(self, stream: Stream, program: Endpoint, request: Request, stay: Stay, begun: list[bool]) -> None:
        scheme = self._house.scheme_of(stay.publication)
        fields = [
            (b":method", request.method),
            (b":scheme", scheme.encode()),
            (b":authority", request.get(b"host") or b""),
            (b":path", request.target),
            *_lower(http1.without(request.headers, (b"host",))),
        ]
        ends_at_once = bool(stream.items) and stream.items[0].end and not stream.items[0].data
        other = program.open(fields, end=ends_at_once)
        other.follow(stream)
        code: int = ErrorCodes.CANCEL
        upwards = None if ends_at_once else asyncio.create_task(self._upwards(stream, program, other))
        try:
            while True:
                item = await other.next()
                if item.headers is not None:
                    headers = item.headers
                    status = next((value for name, value in headers if name == b":status"), None)
                    if status is not None and not status.startswith(b"1"):
                        begun[0] = True
                        headers = [*headers, *_lower(outward(stay.publication))]
                    self._endpoint.headers(stream, headers, end=item.end)
                    if item.end:
                        break
                    continue
                await self._endpoint.data(stream, item.data)
                program.taken(other, item.flow_bytes)
                if item.end:
                    self._endpoint.end(stream)
                    break
            code = ErrorCodes.NO_ERROR  # it has answered, and the rest of the body is not wanted
        except Reset as error:
            code = error.code
            if stream.failure is None:  # the program's: passed on as it is
                self._endpoint.close(stream, error.code)
            raise
        finally:
            stream.on_failure = None
            if upwards is not None:
                upwards.cancel()
                await asyncio.gather(upwards, return_exceptions=True)
            program.close(other, code)

    async def _upwards(self, stream: Stream, program: Endpoint, other: Stream) -> None:
        try:
            while True:
                item = await stream.next()
                if item.headers is not None:
                    program.headers(other, http1.without(item.headers, head.NOT_IN_TRAILERS), end=True)
                    return
                try:
                    await program.data(other, item.data)
                finally:  # also where the program has answered and takes no more: the window is the connection's too
                    self._endpoint.taken(stream, item.flow_bytes)
                if item.end:
                    program.end(other)
                    return
        except (Reset, ConnectionResetError, BellglassError):
            return  # the other half hears it too
        except BadHead as error:
            other.fail(error)


def _request_of(stream: Stream) -> Request:
    """As access and house take it: with a Host. Raises BadHead."""
    fields = stream.request or []
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    method, target = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    authority = pseudo.get(b":authority") or http1.find(fields, b"host")
    if authority is None:
        raise BadHead("there is no authority")
    head.check_target(method, target)
    headers = [(name, value) for name, value in fields if not name.startswith(b":") and name != b"host"]
    for name, value in headers:
        http1.check_field(name, value)
    return Request(method, target, 1, [(b"host", authority), *headers])


def _lower(headers: Headers) -> Headers:
    return [(name.lower(), value) for name, value in headers]
