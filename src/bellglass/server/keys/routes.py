"""/v1/keys, /v1/projects and /v1/me."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from bellglass.errors import NotFound, TooLarge
from bellglass.model import ApiKey, Project, Record
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer, no_content, page
from bellglass.server.http.bodies import read_record
from bellglass.server.http.context import context_of
from bellglass.server.services import principal_of, services_of

routes = Routes("keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateKey(Record):
    project: str
    label: str | None = None
    format: str = "bellglass"
    """`e2b`: a secret of the form that E2B's clients take. What it may do is the same."""


@routes.action(
    "POST", "/v1/keys", "key.create", access="admin", body=CreateKey, answer=ApiKey, status=201,
    example={"project": "reports", "label": "ci"}, errors=(TooLarge,),
)  # fmt: skip
async def create(request: Request) -> Response:
    """A key for a project, which is made if it is new. `secret` is shown this once."""
    services = services_of(request)
    body = await read_record(request, CreateKey, services.settings["server.max_body"])
    key = await services.keys.create(body.project, body.label, body.format)
    context_of(request).objects.update(key_id=key.id, project_id=key.project_id)
    return answer(key, 201)


@routes.action("GET", "/v1/keys", "key.list", access="admin", answer="page:ApiKey")
async def list_keys(request: Request) -> Response:
    """All keys, revoked ones too."""
    return page(await services_of(request).keys.keys(), None)


@routes.action("DELETE", "/v1/keys/{key_id}", "key.delete", access="admin", status=204, errors=(NotFound,))
async def delete(request: Request, key_id: str) -> Response:
    """Revoke a key at once; streams that it started are cut. Repeats answer 204."""
    await services_of(request).keys.revoke(key_id)
    return no_content()


@routes.action("GET", "/v1/projects", "project.list", access="admin", answer="page:Project")
async def list_projects(request: Request) -> Response:
    """All projects."""
    return page(await services_of(request).keys.projects(), None)


@routes.action(
    "GET", "/v1/me", "me.get", access="any", answer=dict,
    answer_example={"project": {"id": "pj...", "name": "reports"}, "key": {"id": "ky..."}},
)  # fmt: skip
async def me(request: Request) -> Response:
    """The project and key that the request came with; `project` is null for the admin key.

    A sandbox that asks for itself gets its id alone."""
    principal, keys = principal_of(request), services_of(request).keys
    if principal.sandbox_id is not None:
        return answer({"project": None, "key": None, "sandbox": {"id": principal.sandbox_id}})
    if principal.project_id is None:
        return answer({"project": None, "key": {"id": principal.key_id}})
    project: Project = keys.project(principal.project_id)
    return answer({"project": project.to_json(), "key": keys.key(principal.key_id).to_json()})
