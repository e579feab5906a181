"""Every error leaves in the one shape of `bellglass.errors`, the framework's own included."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from bellglass.errors import BellglassError, InternalError, MethodNotAllowed, NotFound, RequestError
from bellglass.server.http.context import context_of
from bellglass.server.http.validation import refusal


def error_response(error: BellglassError, request_id: str) -> Response:
    """The answer for an error. Values that JSON can't carry never reach it: messages hold their `repr`."""
    shape = error.to_dict()
    shape["error"]["request_id"] = request_id
    headers = {}
    if error.status == 401:
        headers["www-authenticate"] = 'Bearer realm="bellglass"'
    if error.retryable:
        headers["retry-after"] = "1"
    # ASCII with escapes: a lone surrogate in a message (a file name from a sandbox) would not encode otherwise.
    body = json.dumps(shape, separators=(",", ":"), default=repr).encode("ascii")
    status = error.status if 400 <= error.status <= 599 else 500
    return Response(body, status, headers, media_type="application/json")


async def _bellglass(request: Request, error: Exception) -> Response:
    assert isinstance(error, BellglassError)
    context = context_of(request)
    context.error_code = error.code
    return error_response(error, context.request_id)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    translated: BellglassError
    if error.status_code == 404:
        translated = NotFound("there is no such route", hint="GET /v1/openapi.json lists them")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        translated = MethodNotAllowed(
            f"{request.method} is not allowed here", hint=f"allowed: {allowed}", details={"allowed": allowed}
        )
    else:
        translated = RequestError(str(error.detail))
    answer = await _bellglass(request, translated)
    if error.status_code == 405 and error.headers:
        answer.headers["allow"] = error.headers["Allow"]
    return answer


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _bellglass(request, refusal(error.errors(), skip=1))


async def _fault(request: Request, error: Exception) -> Response:
    context = context_of(request)
    context.error_code = InternalError.code
    return error_response(
        InternalError("the server failed at this request", hint="its log has the reason under this request id"),
        context.request_id,
    )


async def _client_gone(request: Request, error: Exception) -> Response:
    """Nobody reads this answer; 499 is what the access log shows."""
    context_of(request).error_code = "client_gone"
    return Response(status_code=499)


def install(app: FastAPI) -> None:
    handlers: dict[Any, Any] = {
        BellglassError: _bellglass,
        HTTPException: _http,
        RequestValidationError: _invalid,
        ClientDisconnect: _client_gone,
        Exception: _fault,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
