"""/v1/quarantine: the operator's, since these sandboxes belong to nobody whom the database knows."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from bellglass.errors import Conflict, NodeUnavailable, NotFound, TooLarge
from bellglass.model import Quarantined, Record, Sandbox
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer, no_content, page
from bellglass.server.http.bodies import read_record
from bellglass.server.http.context import context_of
from bellglass.server.services import services_of

routes = Routes("quarantine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt(Record):
    """`project` by id or name; by default the one that it belonged to."""

    project: str | None = None


@routes.action(
    "GET", "/v1/quarantine", "quarantine.list", access="admin", answer="page:Quarantined", errors=(NodeUnavailable,)
)
async def list_quarantined(request: Request) -> Response:
    """Sandboxes of the node that the database does not know. They stand still until they are adopted or removed."""
    found: list[Quarantined] = await services_of(request).quarantine.list()
    return page(found, None)


@routes.action(
    "POST", "/v1/quarantine/{quarantined_id}/adopt", "quarantine.adopt", access="admin", body=Adopt, answer=Sandbox,
    example={"project": "reports"}, errors=(NotFound, Conflict, TooLarge, NodeUnavailable),
)  # fmt: skip
async def adopt(request: Request, quarantined_id: str) -> Response:
    """Make it a sandbox of a project again: it goes on where it stood, with the lifetime that it had left."""
    services = services_of(request)
    body = await read_record(request, Adopt, services.settings["server.max_body"])
    context_of(request).objects["sandbox_id"] = quarantined_id
    return answer(await services.quarantine.adopt(quarantined_id, body.project))


@routes.action(
    "DELETE", "/v1/quarantine/{quarantined_id}", "quarantine.delete", access="admin", status=204,
    errors=(NotFound, NodeUnavailable),
)  # fmt: skip
async def delete(request: Request, quarantined_id: str) -> Response:
    """Remove it now, with its processes and its disk."""
    await services_of(request).quarantine.remove(quarantined_id)
    return no_content()
