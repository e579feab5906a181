"""/v1/sandboxes/{id}/network."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from bellglass.errors import Conflict, NodeUnavailable, NotFound, NotSupported, SandboxGone, TooLarge
from bellglass.model import PutNetwork, SandboxNetwork
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer
from bellglass.server.http.bodies import read_record
from bellglass.server.http.context import context_of
from bellglass.server.services import project_of, services_of

routes = Routes("network")
MISTAKEN = dict.fromkeys(("presets", "allow", "rules", "policy", "mode", "deny"), "network")
EXAMPLE = {"network": {"allow": ["api.example.com:443", {"cidr": "203.0.114.0/24"}]}}


@routes.action(
    "GET", "/v1/sandboxes/{sandbox_id}/network", "network.get", answer=SandboxNetwork,
    errors=(NotFound, NodeUnavailable),
)  # fmt: skip
async def get(request: Request, sandbox_id: str) -> Response:
    """What a sandbox may reach, and while it runs the rules that are in force, those of its presets among them."""
    networks, context = services_of(request).networks, context_of(request)
    return answer(await networks.get(project_of(request), sandbox_id, context.request_id))


@routes.action(
    "PUT", "/v1/sandboxes/{sandbox_id}/network", "network.set", body=PutNetwork, answer=SandboxNetwork,
    example=EXAMPLE, errors=(NotFound, Conflict, SandboxGone, TooLarge, NotSupported, NodeUnavailable),
)  # fmt: skip
async def put(request: Request, sandbox_id: str) -> Response:
    """Replace what a running sandbox may reach; answers once it is in force.

    Open connections that it refuses are closed by then. Of two changes at once the later one stays."""
    services, context = services_of(request), context_of(request)
    body = await read_record(request, PutNetwork, services.settings["server.max_body"], mistaken=MISTAKEN)
    found = await services.networks.put(project_of(request), sandbox_id, body.network, context.request_id)
    return answer(found)
