"""/v1/sandboxes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query, Request
from starlette.responses import Response

from bellglass.errors import (
    Conflict,
    IdempotencyConflict,
    LimitExceeded,
    NoCapacity,
    NodeUnavailable,
    NotFound,
    NotSupported,
    SandboxFailed,
    SandboxGone,
    TooLarge,
)
from bellglass.model import CreateSandbox, Sandbox, UpdateSandbox
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer, no_content, page
from bellglass.server.http.bodies import read_record, read_record_and_names
from bellglass.server.http.context import context_of
from bellglass.server.sandboxes.idempotency import check_key
from bellglass.server.sandboxes.service import filters_of
from bellglass.server.services import project_of, services_of

routes = Routes("sandboxes")
MISTAKEN = {"timeout": "lifetime", "ttl": "lifetime", "image": "template", "ram": "memory"}
CREATE_EXAMPLE = {
    "template": "base", "name": "report-7", "labels": {"team": "data"}, "cpus": 2, "memory": "4GiB",
    "lifetime": "15m", "inputs": {"sales.csv": {"text": "region,amount\neu,120\n"}},
}  # fmt: skip


@routes.action(
    "POST", "/v1/sandboxes", "sandbox.create", body=CreateSandbox, answer=Sandbox, status=201, example=CREATE_EXAMPLE,
    errors=(Conflict, IdempotencyConflict, LimitExceeded, TooLarge, NotSupported, NoCapacity, NodeUnavailable,
            SandboxFailed, SandboxGone, NotFound),
)  # fmt: skip
async def create(
    request: Request,
    idempotency_key: Annotated[str | None, Header(description="same key and body: same answer, for 24 h")] = None,
) -> Response:
    """Start a sandbox; answers when it runs. 200 instead of 201: `get_or_create` found one."""
    services, context = services_of(request), context_of(request)
    key = check_key(idempotency_key)
    limit = services.settings["server.max_create_body"]
    body = await read_record(request, CreateSandbox, limit, mistaken=MISTAKEN)
    created = await services.creator.create(project_of(request), body, key, context.request_id)
    context.objects["sandbox_id"] = created.sandbox["id"]
    return answer(created.sandbox, created.status)


@routes.action("GET", "/v1/sandboxes", "sandbox.list", answer="page:Sandbox")
async def list_sandboxes(
    request: Request,
    state: Annotated[str | None, Query(description="a state, or `all`; by default those that have not ended")] = None,
    owner: str | None = None,
    name: str | None = None,
    label: Annotated[list[str], Query(description="KEY=VALUE, repeatable; all must fit")] = [],  # noqa: B006
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`cursor` of the page before")] = None,
) -> Response:
    """Sandboxes of the project, newest first."""
    filters = filters_of(state, owner, name, label)
    items, next_cursor = await services_of(request).sandboxes.list(project_of(request), filters, limit, cursor)
    return page(items, next_cursor)


@routes.action("GET", "/v1/sandboxes/{sandbox_id}", "sandbox.get", answer=Sandbox, errors=(NotFound,))
async def get(request: Request, sandbox_id: str) -> Response:
    """One sandbox; one that ended by itself stays readable for days."""
    return answer(services_of(request).sandboxes.get(project_of(request), sandbox_id))


@routes.action(
    "PATCH", "/v1/sandboxes/{sandbox_id}", "sandbox.update", body=UpdateSandbox, answer=Sandbox,
    example={"lifetime": "1h", "labels": {"team": "data"}},
    errors=(NotFound, Conflict, SandboxGone, TooLarge, NodeUnavailable),
)  # fmt: skip
async def update(request: Request, sandbox_id: str) -> Response:
    """Change labels, idle_timeout (null takes it away), or when it ends: `lifetime` counted from now, `keep_for` which
    never shortens, or `expires_at`."""
    services, context = services_of(request), context_of(request)
    body, given = await read_record_and_names(
        request, UpdateSandbox, services.settings["server.max_body"], mistaken=MISTAKEN
    )
    return answer(await services.sandboxes.update(project_of(request), sandbox_id, body, given, context.request_id))


@routes.action("DELETE", "/v1/sandboxes/{sandbox_id}", "sandbox.delete", status=204, errors=(NotFound, NodeUnavailable))
async def delete(request: Request, sandbox_id: str) -> Response:
    """End a sandbox; answers when all of its processes are dead. Repeats answer 204."""
    context = context_of(request)
    await services_of(request).deleter.delete(project_of(request), sandbox_id, context.request_id)
    return no_content()
