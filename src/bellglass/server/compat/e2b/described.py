"""/v1/compat/e2b: what E2B's clients have to be told, natively asked for."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from bellglass.server.compat.e2b.control.shapes import ENVD_VERSION, domain_of
from bellglass.server.compat.e2b.routing import PREFIX
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer
from bellglass.server.services import services_of

routes = Routes("compat")


@routes.action(
    "GET", "/v1/compat/e2b", "compat.e2b", access="any", answer=dict,
    answer_example={"path": PREFIX, "domain": "localhost:7380", "envd_version": ENVD_VERSION},
)  # fmt: skip
async def described(request: Request) -> Response:
    """Where E2B's API is below this server, and the domain of sandboxes' ports: `<port>-<id>.<domain>`."""
    domain = domain_of(services_of(request).ports.origins)
    return answer({"path": PREFIX, "domain": domain, "envd_version": ENVD_VERSION})
