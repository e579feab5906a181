"""How a route of the control plane is described: its native action, and its function. Errors leave in E2B's shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bellglass.errors import BellglassError, InternalError, MethodNotAllowed, NotFound, RequestError
from bellglass.server.compat.e2b import errors
from bellglass.server.compat.e2b.auth import authenticate
from bellglass.server.http.context import context_of
from bellglass.server.services import Services

Handler = Callable[[Request], Awaitable[Response]]


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services()
    return services


class Routes:
    """The routes of one module. Before a function runs, the key was checked and the action was told to the audit."""

    def __init__(self) -> None:
        self.routes: list[BaseRoute] = []

    def action(self, method: str, path: str, action: str, *, needs_key: bool = True) -> Callable[[Handler], Handler]:
        """`action` is the native one: what a key may do does not depend on the door."""

        def register(function: Handler) -> Handler:
            @wraps(function)
            async def handler(request: Request) -> Response:
                context = context_of(request)
                context.action, context.audited = action, method not in ("GET", "HEAD")
                context.objects.update(request.path_params)
                if needs_key:
                    authenticate(request, services_of(request))
                return await function(request)

            self.routes.append(Route(path, handler, methods=[method]))
            return function

        return register


def application(routes: Sequence[BaseRoute], services: Callable[[], Services]) -> Starlette:
    handlers: dict[Any, Any] = {
        BellglassError: _bellglass,
        HTTPException: _http,
        ClientDisconnect: _client_gone,
        Exception: _fault,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.services = services
    return app


async def _bellglass(request: Request, error: Exception) -> Response:
    assert isinstance(error, BellglassError)
    context = context_of(request)
    context.error_code = error.code
    return errors.answer(error, context.request_id)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    translated: BellglassError = RequestError(str(error.detail))
    if error.status_code == 404:
        translated = NotFound("E2B's API has no such route here")
    elif error.status_code == 405:
        translated = MethodNotAllowed(f"{request.method} is not allowed here")
    return await _bellglass(request, translated)


async def _fault(request: Request, error: Exception) -> Response:
    context = context_of(request)
    context.error_code = InternalError.code
    return errors.answer(
        InternalError("the server failed at this request", hint="its log has the reason under this request id"),
        context.request_id,
    )


async def _client_gone(request: Request, error: Exception) -> Response:
    context_of(request).error_code = "client_gone"
    return Response(status_code=499)
