"""How a route is described: its action name, who may call it, its body, its examples and the errors it can give.

`Routes` is an APIRouter whose decorator takes just that. Before a route's function runs the key has been checked, then
the names of its query parameters (an unknown one is refused like an unknown field of a body).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from bellglass.errors import BellglassError, InvalidRequest
from bellglass.model import Record
from bellglass.server.http.context import context_of
from bellglass.server.http.validation import unknown_field
from bellglass.server.http.websockets import Message, SocketRoute
from bellglass.server.identity import access

Access = Literal["public", "any", "project", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What OpenAPI and the audit need to know of a route beyond its signature."""

    action: str
    access: Access
    audited: bool
    body: type[Record] | str | None
    """A record for a JSON body, or the media type of a raw one."""
    body_required: bool
    example: Any
    answer: type[Any] | str | None
    status: int
    answer_example: Any
    errors: tuple[type[BellglassError], ...]
    headers: dict[str, str]
    """Request headers worth naming: name to what they do."""


class ActionRoute(APIRoute):
    """A route with a Description in `self.described` (set by Routes)."""

    described: Description

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        queries = frozenset(field.alias for field in self.dependant.query_params)
        route = self

        async def handler(request: Request) -> Response:
            context = context_of(request)
            described = route.described
            context.action, context.audited = described.action, described.audited
            context.objects.update(request.scope["path_params"])
            if context.principal is not None:  # a sandbox calls
                access.check(context.principal, described.action, request.scope["path_params"])
            elif described.access != "public":
                services = request.app.state.services
                context.principal = services.auth.check(request.headers, described.access)
                context.count(context.principal.key, services.settings["server.max_key_requests"])
            if query := request.scope["query_string"]:
                _check_utf8(query)
                for name in request.query_params:
                    if name not in queries:
                        raise unknown_field(name, sorted(queries), kind="query parameter")
            return await inner(request)

        return handler


def _check_utf8(query: bytes) -> None:
    """The framework would put a replacement character for a wrong byte, and a path would name another file."""
    if b"%" in query or not query.isascii():
        try:
            unquote_to_bytes(query).decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest("the query is not UTF-8", details={"field": "query"}) from None


class Routes(APIRouter):
    """The routes of one feature."""

    def __init__(self, tag: str) -> None:
        super().__init__(route_class=ActionRoute, redirect_slashes=False)
        self._tag = tag

    def socket(
        self, path: str, action: str, *, messages: Sequence[Message], queries: Mapping[str, str] | None = None
    ) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
        """Register `function(socket, **path_params)` as a WebSocket of project keys; `queries`: the parameters that it
        reads by `socket.text`, `flag` and `integer`, and what they are. OpenAPI has no words for it: the reference is
        made of `messages`."""

        def register(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
            self.routes.append(SocketRoute(path, action, function, queries or {}, messages))
            return function

        return register

    def action(
        self,
        method: str,
        path: str,
        action: str,
        *,
        answer: type[Any] | str | None = None,
        status: int = 200,
        access: Access = "project",
        body: type[Record] | str | None = None,
        body_required: bool = True,
        example: Any = None,
        answer_example: Any = None,
        errors: tuple[type[BellglassError], ...] = (),
        headers: dict[str, str] | None = None,
        audited: bool | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a function. `answer` is a record, "page:<Record>" handled by the OpenAPI writer, or a media type."""
        described = Description(
            action=action,
            access=access,
            audited=method not in ("GET", "HEAD") if audited is None else audited,
            body=body,
            body_required=body_required,
            example=example,
            answer=answer,
            status=status,
            answer_example=answer_example,
            errors=errors,
            headers=headers or {},
        )

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.add_api_route(
                path,
                function,
                methods=[method],
                operation_id=action,
                name=action,
                tags=[self._tag],
                status_code=status,
                response_model=None,
                summary=" ".join((function.__doc__ or action).split("\n\n")[0].split()),
                description=(function.__doc__ or "").strip() or None,
            )
            route = self.routes[-1]
            assert isinstance(route, ActionRoute)
            route.described = described
            return function

        return register
