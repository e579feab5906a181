"""/v1/limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from bellglass.errors import Forbidden, NotFound, TooLarge
from bellglass.model import ProjectLimits, Record
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer
from bellglass.server.http.bodies import read_record
from bellglass.server.http.context import context_of
from bellglass.server.services import principal_of, services_of

routes = Routes("limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimits(Record):
    """`project` is a name or an id; `sandboxes` null: the setting's again."""

    project: str
    sandboxes: int | None


@routes.action(
    "GET", "/v1/limits", "limits.get", access="any", answer=ProjectLimits, errors=(Forbidden, NotFound)
)  # fmt: skip
async def get(
    request: Request,
    project: Annotated[str | None, Query(description="a project's name or id, for the admin key alone")] = None,
) -> Response:
    """What the key's project may have at once, and how much of it it has."""
    return answer(await services_of(request).limits.get(principal_of(request), project))


@routes.action(
    "PUT", "/v1/limits", "limits.put", access="admin", body=SetLimits, answer=ProjectLimits,
    example={"project": "reports", "sandboxes": 20}, errors=(NotFound, TooLarge),
)  # fmt: skip
async def put(request: Request) -> Response:
    """Set a project's limits; null takes the installation's default. Sandboxes over a new limit live on."""
    services = services_of(request)
    body = await read_record(request, SetLimits, services.settings["server.max_body"])
    changed = await services.limits.put(body.project, body.sandboxes)
    context_of(request).objects["project_id"] = changed.project_id
    return answer(changed)
