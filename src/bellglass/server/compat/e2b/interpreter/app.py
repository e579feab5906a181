"""What answers for port 49999 of a sandbox: /execute and /contexts."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bellglass.errors import (
    BellglassError,
    Forbidden,
    InternalError,
    InvalidCommand,
    InvalidRequest,
    KernelDied,
    NotFound,
)
from bellglass.ids import CONTEXT_ID
from bellglass.model import LANGUAGES, MAX_RUN_TIMEOUT_S, CreateContext, RunCode
from bellglass.server.compat.e2b.actions import services_of
from bellglass.server.compat.e2b.errors import answer as error_answer
from bellglass.server.compat.e2b.errors import body as error_body
from bellglass.server.compat.e2b.errors import not_running
from bellglass.server.compat.e2b.interpreter.bodies import Execute, NewContext, read
from bellglass.server.compat.e2b.interpreter.stream import ExecuteAnswer
from bellglass.server.compat.e2b.routing import Destination, admit
from bellglass.server.contexts.service import in_our_words
from bellglass.server.http.answers import no_content
from bellglass.server.http.context import context_of
from bellglass.server.sandboxes import guard

DEFAULTS = ("python", "javascript")
"""Contexts that E2B's template starts with; here each is made by its first run."""
_SAME = {
    **{"js": "javascript", "node": "javascript", "ts": "javascript", "typescript": "javascript"},
    **{"py": "python", "sh": "bash"},
}
"""The kernel of JavaScript runs TypeScript too."""
_ONE = re.compile(r"/contexts/([^/]+)(/restart)?")


async def serve(request: Request, target: Destination) -> Response:
    path = request.scope["path"]
    try:
        if path == "/health":
            return Response("OK", media_type="text/plain")
        _check_token(request, target)
        admit(request, target)
        return await _route(request, target, path)
    except BellglassError as error:
        context_of(request).error_code = error.code
        try:
            guard.running(services_of(request).reader, target.project_id, target.sandbox_id)
        except BellglassError:
            return not_running(target.sandbox_id)
        if isinstance(error, KernelDied):  # a 502 would be taken for the end of the sandbox
            return error_body(500, error.message, error_code=error.code)
        return error_answer(error, context_of(request).request_id)


def _check_token(request: Request, target: Destination) -> None:
    """Either of the two: clients send that of the envd with /execute alone, and the other one with everything."""
    tokens, headers = services_of(request).e2b, request.headers
    if not (
        tokens.opens_ports(target.sandbox_id, headers.get("e2b-traffic-access-token"))
        or tokens.opens_envd(target.sandbox_id, headers.get("x-access-token"))
    ):
        raise Forbidden("the traffic access token is missing or not this sandbox's")


async def _route(request: Request, target: Destination, path: str) -> Response:
    routes: dict[tuple[str, str], Callable[[Request, Destination], Awaitable[Response]]] = {
        ("POST", "/execute"): _execute,
        ("GET", "/contexts"): _list,
        ("POST", "/contexts"): _create,
    }
    if (route := routes.get((request.method, path))) is not None:
        return await route(request, target)
    if (one := _ONE.fullmatch(path)) is not None:
        if request.method == "DELETE" and one[2] is None:
            return await _delete(request, target, one[1])
        if request.method == "POST" and one[2]:
            return await _restart(request, target, one[1])
    raise NotFound("E2B's code interpreter has no such route here")


async def _execute(request: Request, target: Destination) -> Response:
    _acts(request, "context.run")
    body = await read(request, Execute)
    if body.context_id and body.language:
        raise InvalidRequest("Only one of context_id or language can be provided", details={"field": "language"})
    context_id = body.context_id or _language(body.language)
    if context_id not in LANGUAGES and not CONTEXT_ID.fullmatch(context_id):
        raise NotFound(f"Context {context_id} not found")
    # Clients end it by hanging up, when their own time is over.
    env = target.variables | (body.env_vars or {})
    run = RunCode(code=body.code, env=env, timeout=MAX_RUN_TIMEOUT_S)
    services, request_id = services_of(request), context_of(request).request_id
    run_id, stream = await services.contexts.run(
        target.project_id, target.sandbox_id, context_id, run, "ndjson", request_id
    )
    context_of(request).objects |= {"context_id": context_id, "run_id": run_id}
    return ExecuteAnswer(stream, target.principal.key, in_our_words=in_our_words)


async def _list(request: Request, target: Destination) -> Response:
    _acts(request, "context.list", audited=False)
    services = services_of(request)
    found = await services.contexts.list(target.project_id, target.sandbox_id, context_of(request).request_id)
    workdir = guard.running(services.reader, target.project_id, target.sandbox_id).workdir
    known = {context["id"]: _shape(context) for context in found}
    defaults = {name: {"id": name, "language": name, "cwd": workdir} for name in DEFAULTS}
    return _json(
        [*(defaults | {name: known.pop(name) for name in DEFAULTS if name in known}).values(), *known.values()]
    )


async def _create(request: Request, target: Destination) -> Response:
    _acts(request, "context.create")
    body = await read(request, NewContext)
    services, request_id = services_of(request), context_of(request).request_id
    wanted = CreateContext(language=_language(body.language), cwd=body.cwd)
    try:
        made = await services.contexts.create(target.project_id, target.sandbox_id, wanted, None, request_id)
    except InvalidCommand:
        if body.cwd is None:
            raise
        # There the folder is made.
        params = {"path": body.cwd, "parents": True, "exist_ok": True, "mode_bits": 0o755}
        await services.files.call(target.project_id, target.sandbox_id, "file.mkdir", params, request_id)
        made = await services.contexts.create(target.project_id, target.sandbox_id, wanted, None, request_id)
    return _json(_shape(made))


async def _delete(request: Request, target: Destination, context_id: str) -> Response:
    _acts(request, "context.delete")
    request_id = context_of(request).request_id
    await services_of(request).contexts.delete(target.project_id, target.sandbox_id, context_id, request_id)
    return no_content()


async def _restart(request: Request, target: Destination, context_id: str) -> Response:
    _acts(request, "context.restart")
    request_id = context_of(request).request_id
    await services_of(request).contexts.restart(target.project_id, target.sandbox_id, context_id, request_id)
    return no_content()


def _language(given: str | None) -> str:
    """Raises InternalError for one without a kernel, as clients expect it."""
    name = (given or "python").strip().lower()
    name = _SAME.get(name, name)
    if name not in LANGUAGES:
        raise InternalError(f"language {name[:40]!r} has no kernel here", hint=f"there are: {', '.join(LANGUAGES)}")
    return name


def _acts(request: Request, action: str, *, audited: bool = True) -> None:
    context = context_of(request)
    context.action, context.audited = action, audited


def _shape(context: dict[str, Any]) -> dict[str, Any]:
    return {name: context[name] for name in ("id", "language", "cwd")}


def _json(value: Any) -> Response:
    return Response(json.dumps(value, separators=(",", ":")).encode("ascii"), media_type="application/json")
