"""WebSockets as routes: the same keys, errors and accounts as requests have.

What is wrong before the handshake is an HTTP answer with its own status, in the one shape. An error after it is a text
message `{"type": "error", "error": {...}}` and then a close with code 4000 + its status and its code as reason. A route
reads one message at a time and the client isn't read from until it asks for the next; `send` waits for a client that
takes nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import structlog
from starlette.datastructures import Headers
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from bellglass.errors import BellglassError, InternalError, InvalidRequest, Unauthorized
from bellglass.server.auth.principal import Principal
from bellglass.server.http.context import Context, context_of
from bellglass.server.http.errors import error_response
from bellglass.server.http.validation import refuse, unknown_field

MAX_MESSAGE_BYTES = 1024 * 1024
PING_EVERY_S = 20.0
FLUSH_S = 3.0
CLOSE_BASE = 4000
DROPPED = 1006
log = structlog.get_logger("bellglass.access")
_quiet = logging.getLogger("bellglass.websockets")
_quiet.setLevel(logging.WARNING)


class SocketClosed(Exception):
    """The client closed it with `code`, or is gone without a word (1005, 1006)."""

    def __init__(self, code: int) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


class Socket:
    """One connection of a client, for the route's function. Only one task may receive, and one send."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, known: frozenset[str]) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.accepted = False
        self.closed = False
        query = scope["query_string"]
        try:
            pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
        except UnicodeDecodeError:
            raise InvalidRequest("the query is not UTF-8", details={"field": "query"}) from None
        for name, _ in pairs:
            if name not in known:
                raise unknown_field(name, sorted(known), kind="query parameter")
        self._query = dict(pairs)

    @property
    def context(self) -> Context:
        return context_of(self)

    @property
    def scope(self) -> Scope:
        return self._scope

    @property
    def app(self) -> Any:
        return self._scope["app"]

    @property
    def principal(self) -> Principal:
        principal = self.context.principal
        assert principal is not None
        return principal

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._query.get(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        text = self._query.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false", "1", "0"):
            raise refuse(name, text, "is not true or false")
        return text.lower() in ("true", "1")

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = 2**62) -> int | None:
        text = self._query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or not least <= int(text) <= most:
            raise refuse(name, text, f"is not a whole number from {least} to {most}")
        return int(text)

    async def accept(self) -> None:
        message = await self._receive()
        if message["type"] != "websocket.connect":
            raise SocketClosed(DROPPED)
        await self._send({"type": "websocket.accept", "headers": []})
        self.accepted = True

    async def receive(self) -> bytes | str:
        """The next message. Raises SocketClosed."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.closed = True
            raise SocketClosed(message.get("code") or DROPPED)
        text: str | None = message.get("text")
        return text if text is not None else message["bytes"]

    async def send(self, data: bytes | str) -> None:
        """Waits for a client that is slow. Raises SocketClosed."""
        if self.closed:
            raise SocketClosed(DROPPED)
        kind = "text" if isinstance(data, str) else "bytes"
        try:
            await self._send({"type": "websocket.send", kind: data})
        except (OSError, RuntimeError) as error:  # uvicorn's ways to say that the client is gone, or has closed
            self.closed = True
            raise SocketClosed(DROPPED) from error

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Safe to repeat, and after the client's own."""
        if not self.closed:
            self.closed = True
            try:
                await self._send({"type": "websocket.close", "code": code, "reason": reason[:120]})
            except (OSError, RuntimeError):
                pass  # the client was faster

    async def fail(self, error: BellglassError) -> None:
        """Say it and close."""
        shape = error.to_dict()
        shape["error"]["request_id"] = self.context.request_id
        text = json.dumps({"type": "error", **shape}, separators=(",", ":"), default=repr)
        try:
            await self.send(text)
        except SocketClosed:
            return
        await self.close(CLOSE_BASE + error.status, error.code)

    async def both(self, first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
        """Run two directions beside each other until one of them ends; the other is then cancelled. Raises what the
        one raised."""
        tasks = [asyncio.create_task(first), asyncio.create_task(second)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if task in done:
                task.result()


Handler = Callable[..., Awaitable[None]]


class Message(NamedTuple):
    """For the reference: a kind of message, `out` to the client or `in` from him, and what it means."""

    direction: Literal["out", "in"]
    shape: str
    what: str


class SocketRoute(WebSocketRoute):
    """`handler(socket, **path_params)` begins before the handshake and ends the connection with its return. `queries`:
    what each parameter is."""

    def __init__(
        self, path: str, action: str, handler: Handler, queries: Mapping[str, str], messages: Sequence[Message]
    ) -> None:
        super().__init__(path, _Endpoint(action, handler, frozenset(queries)), name=action)
        self.action = action
        self.about = (handler.__doc__ or "").strip()
        self.queries = dict(queries)
        self.messages = tuple(messages)


class _Endpoint:
    def __init__(self, action: str, handler: Handler, queries: frozenset[str]) -> None:
        self._action = action
        self._handler = handler
        self._queries = queries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket: Socket | None = None
        revoked = False
        task = asyncio.current_task()
        assert task is not None

        def cut() -> None:
            nonlocal revoked
            revoked = True
            task.cancel()

        context: Context = scope["bellglass"]
        context.action, context.audited = self._action, True
        context.objects.update(scope["path_params"])
        try:
            services = scope["app"].state.services
            context.principal = services.auth.check(Headers(scope=scope), "project")
            key = context.principal.key
            context.count(key, services.settings["server.max_key_requests"])
            socket = Socket(scope, receive, send, self._queries)
            key.cuts.add(cut)
            try:
                await self._handler(socket, **scope["path_params"])
                await socket.close()
            except asyncio.CancelledError:
                if not revoked:
                    raise
                task.uncancel()
                raise Unauthorized("the key was revoked") from None
            finally:
                key.cuts.discard(cut)
        except SocketClosed:
            pass
        except BellglassError as error:
            await _tell(error, context, socket, scope, receive, send)
        except Exception:
            log.exception("websocket failed", request_id=context.request_id, action=self._action)
            fault = InternalError("the server failed here", hint="its log has the reason under this request id")
            await _tell(fault, context, socket, scope, receive, send)


async def _tell(
    error: BellglassError, context: Context, socket: Socket | None, scope: Scope, receive: Receive, send: Send
) -> None:
    context.error_code = error.code
    if socket is None or not socket.accepted:
        await error_response(error, context.request_id)(scope, receive, send)
    else:
        await socket.fail(error)


class SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, which tells when the connection is gone, and keeps no pongs for a client that reads nothing."""

    on_gone: Callable[[], None] | None = None
    _cut: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # Its lines have the query, which holds names of files, and Gateway writes one for each connection.
        self.logger = self.conn.logger = _quiet

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # A refusal is an answer: uvicorn would log an error for each, since nothing was accepted.
            self.handshake_complete = True

    def eof_received(self) -> None:
        super().eof_received()
        # Who hangs up may read what is under way, for a while: closing alone would wait for him for ever.
        self._cut = self.loop.call_later(FLUSH_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._cut is not None:
            self._cut.cancel()
        if self.on_gone is not None:
            self.on_gone()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # dropped: only the last of several pings has to be answered
