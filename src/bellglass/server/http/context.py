"""What is known about one request, and the ASGI layer around the application that keeps it.

`Gateway` is plain ASGI: it gives the request its id, answers faults of ours in the one shape, and tells the access log
and the audit when the answer is out. It never looks into bodies, and no header but the request id is logged.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from bellglass.errors import InternalError, LimitExceeded, NodeUnavailable, NotFound
from bellglass.ids import new_request_id

if TYPE_CHECKING:
    from bellglass.server.auth.principal import KeyState, Principal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY = "bellglass"
SHORT_BODY_BYTES = 65536
_REQUEST_ID = re.compile(rb"^[A-Za-z0-9._-]{1,128}$")
log = structlog.get_logger("bellglass.access")


@dataclass(slots=True)
class Context:
    """One request. `action` is the route's, None while no route has taken it."""

    request_id: str
    principal: Principal | None = None
    action: str | None = None
    audited: bool = False
    objects: dict[str, str] = field(default_factory=dict)
    """Ids of what the request is about, for the audit."""
    error_code: str | None = None
    counted: KeyState | None = None
    """The key whose requests this one is counted among."""

    def count(self, key: KeyState, most: int) -> None:
        """Until `finished`. Raises LimitExceeded: one key must not use up what all share."""
        if key.requests >= most:
            raise LimitExceeded(
                f"{key.requests} requests of this key are under way, the most at once is {most}",
                hint="wait for one to end; the operator's setting is server.max_key_requests",
            )
        key.requests += 1
        self.counted = key

    def finished(self) -> None:
        if self.counted is not None:
            self.counted.requests -= 1
            self.counted = None


def context_of(request: Any) -> Context:
    """The context of a starlette Request."""
    context: Context = request.scope[KEY]
    return context


class Gateway:
    """The outermost layer. `finished(context, status)` is called once per request, after its answer."""

    def __init__(self, app: App, finished: Callable[[Context, int], None]) -> None:
        self.app = app
        self._finished = finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        context = Context(request_id=_request_id(scope))
        scope[KEY] = context
        began = time.perf_counter()
        status = 0
        body_left, unasked = _has_long_body(scope), _waits_to_be_asked(scope)

        async def receive_body(inner: Receive = receive) -> Message:
            nonlocal body_left, unasked
            unasked = False
            message = await inner()
            if message["type"] == "http.request" and not message.get("more_body", False):
                body_left = False
            return message

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", context.request_id.encode())]
                if unasked or (body_left and status >= 400):
                    # A body that was not asked for may come or not: nobody could tell it from the next request. A
                    # long one that was refused is not worth to be read for the connection's sake.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            await self.app(scope, receive_body, send_with_id)
        except asyncio.CancelledError:  # the server goes down and has waited long enough
            if status == 0:
                from bellglass.server.http.errors import error_response  # it imports this module

                error = NodeUnavailable(
                    "the server is going down",
                    hint="whether the request was carried out is not known; retry in a moment",
                )
                context.error_code = error.code
                await error_response(error, context.request_id)(scope, receive, send_with_id)
            raise
        except Exception:  # told to the client by then (http.errors); here it is logged, and the server goes on
            context.error_code = context.error_code or InternalError.code
            log.exception("request failed", request_id=context.request_id, action=context.action)
        finally:
            self._end(scope, context, status, began)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The same for a WebSocket, whose status is 101 or that of the answer in its place."""
        context = scope[KEY] = Context(request_id=_request_id(scope))
        began, status = time.perf_counter(), 0
        tag = (b"x-request-id", context.request_id.encode())

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.close" and status == 0:  # no route
                from bellglass.server.http.errors import error_response  # it imports this module

                error = NotFound("there is no such WebSocket", hint="the guides name the routes that are one")
                context.error_code = error.code
                await error_response(error, context.request_id)(scope, receive, send_with_id)
                return
            if message["type"] in ("websocket.accept", "websocket.http.response.start"):
                status = message.get("status", 101)
                message["headers"] = [*message.get("headers", ()), tag]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            context.error_code = context.error_code or InternalError.code
            log.exception("request failed", request_id=context.request_id, action=context.action)
        finally:
            self._end(scope, context, status, began)

    def _end(self, scope: Scope, context: Context, status: int, began: float) -> None:
        context.finished()
        self._finished(context, status)
        log.info(
            "request",
            method=scope.get("method", "WEBSOCKET"),
            path=scope["path"],
            action=context.action,
            status=status,
            code=context.error_code,
            key=context.principal.key_id if context.principal else None,
            request_id=context.request_id,
            ms=round((time.perf_counter() - began) * 1000, 2),
        )


def _has_long_body(scope: Scope) -> bool:
    """Whether the request announces more than it costs to read on. A chunked body may be of any length."""
    headers = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or not length.isdigit() or int(length) > SHORT_BODY_BYTES


def _waits_to_be_asked(scope: Scope) -> bool:
    """Whether the client sends its body only after 100 Continue, which is sent when the body is read."""
    return scope["http_version"] != "1.0" and any(
        name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"]
    )


def _request_id(scope: Scope) -> str:
    """The caller's X-Request-Id when it is sane, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return new_request_id()
