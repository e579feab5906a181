"""/v1/sandboxes/{id}/contexts."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from bellglass.errors import (
    AgentLost,
    Conflict,
    InvalidCommand,
    KernelDied,
    LimitExceeded,
    NodeUnavailable,
    NotAcceptable,
    NotFound,
    NotSupported,
    SandboxGone,
    TooLarge,
)
from bellglass.model import Context, CreateContext, RunCode, RunResult
from bellglass.server.contexts.service import choose_run_format, in_our_words
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer, no_content, page
from bellglass.server.http.bodies import read_record
from bellglass.server.http.context import context_of
from bellglass.server.http.streams import LinkResponse
from bellglass.server.sandboxes.idempotency import check_key
from bellglass.server.services import principal_of, project_of, services_of

routes = Routes("contexts")
BASE = "/v1/sandboxes/{sandbox_id}/contexts"
ONE = BASE + "/{context_id}"
INSIDE = (NotFound, SandboxGone, Conflict, AgentLost, NodeUnavailable)
STARTS = (*INSIDE, KernelDied, NotSupported, LimitExceeded, InvalidCommand)
MAX_RUN_BODY = 8 * 1024 * 1024
MISTAKEN = {"env_vars": "env", "envs": "env", "lang": "language", "workdir": "cwd", "timeout_s": "timeout"}
EXAMPLE = {
    "id": "cxaaaaaaaaaaaaaaaaaaaa", "sandbox_id": "sbaaaaaaaaaaaaaaaaaaaa", "language": "python", "cwd": "/home/user",
    "user": "user", "state": "ready", "execution_id": "01KDAYPQ4QGSFF1J2QZ1DVJC8A",
    "created_at": "2026-01-01T00:00:00.000000Z",
}  # fmt: skip
RESULT = {
    "run_id": "01KDAYPQ4QGSFF1J2QZ1DVJC8B", "status": "ok", "execution_count": 1, "timed_out": False,
    "interrupted": False, "state_lost": False, "duration_s": 0.012, "stdout": "", "stderr": "", "truncated": False,
    "results": [{"main": True, "data": {"text/plain": "42"}, "dropped": {}}], "error": None,
}  # fmt: skip


@routes.action(
    "POST", BASE, "context.create", body=CreateContext, answer=Context, status=201, errors=(*STARTS, TooLarge),
    example={"language": "python", "cwd": "/tmp"}, answer_example=EXAMPLE,
    headers={"Idempotency-Key": "the same key is the same context"},
)  # fmt: skip
async def create(request: Request, sandbox_id: str) -> Response:
    """A kernel of its own, ready for code when the answer comes. Needs a template with a code interpreter."""
    services, context = services_of(request), context_of(request)
    body = await read_record(request, CreateContext, services.settings["server.max_body"], mistaken=MISTAKEN)
    key = check_key(request.headers.get("idempotency-key"))
    made = await services.contexts.create(project_of(request), sandbox_id, body, key, context.request_id)
    context.objects["context_id"] = made["id"]
    return answer(made, 201)


@routes.action("GET", BASE, "context.list", answer="page:Context", answer_example=EXAMPLE, errors=INSIDE)
async def list_contexts(request: Request, sandbox_id: str) -> Response:
    """Contexts of a sandbox, oldest first; default ones (`python`, `javascript`, `bash`) from their first run on."""
    services = services_of(request)
    return page(await services.contexts.list(project_of(request), sandbox_id, context_of(request).request_id), None)


@routes.action("DELETE", ONE, "context.delete", status=204, errors=INSIDE)
async def delete(request: Request, sandbox_id: str, context_id: str) -> Response:
    """End a context with all of its processes. A run under way ends with `kernel_died`."""
    services = services_of(request)
    await services.contexts.delete(project_of(request), sandbox_id, context_id, context_of(request).request_id)
    return no_content()


@routes.action(
    "POST", ONE + "/run", "context.run", body=RunCode, answer=RunResult, errors=(*STARTS, NotAcceptable, TooLarge),
    example={"code": "6 * 7", "timeout": 20}, answer_example=RESULT,
    headers={"Accept": "application/json (buffered) or application/x-ndjson (streamed)"},
)  # fmt: skip
async def run(request: Request, sandbox_id: str, context_id: str) -> Response:
    """Run code in a context, behind the runs that came before. A client that hangs up interrupts it.

    Streamed: lines whose `type` is `started`, `stdout`, `stderr`, `result`, `error`, `skipped`, `keepalive`, and `end`
    last. Its `status` is `ok`, `error` (the code raised), `died` or `lost`, the last two with an `error` of the one
    shape. A long result comes in pieces (`mime`, `piece`, `part`, `last`; `json`: the pieces are JSON text)."""
    services, context = services_of(request), context_of(request)
    body = await read_record(request, RunCode, MAX_RUN_BODY, mistaken=MISTAKEN)
    accept = choose_run_format(request.headers.get("accept"))
    run_id, stream = await services.contexts.run(
        project_of(request), sandbox_id, context_id, body, accept, context.request_id
    )
    context.objects["run_id"] = run_id
    return LinkResponse(stream, principal_of(request).key, in_our_words=in_our_words)


@routes.action(
    "POST", ONE + "/interrupt", "context.interrupt", answer=dict, answer_example={"interrupted": True}, errors=INSIDE
)
async def interrupt(request: Request, sandbox_id: str, context_id: str) -> Response:
    """Stop the run under way; variables stay. Code that does not stop is killed, which its run tells."""
    services = services_of(request)
    stopped = await services.contexts.interrupt(
        project_of(request), sandbox_id, context_id, context_of(request).request_id
    )
    return answer({"interrupted": stopped})


@routes.action("POST", ONE + "/restart", "context.restart", answer=Context, answer_example=EXAMPLE, errors=STARTS)
async def restart(request: Request, sandbox_id: str, context_id: str) -> Response:
    """A fresh kernel under the same id, ready when the answer comes. A run under way ends with `kernel_died`."""
    services = services_of(request)
    return answer(
        await services.contexts.restart(project_of(request), sandbox_id, context_id, context_of(request).request_id)
    )
