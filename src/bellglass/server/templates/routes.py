"""/v1/templates."""

from __future__ import annotations

from dataclasses import replace

from fastapi import Request
from starlette.responses import Response

from bellglass.errors import NodeUnavailable
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import page
from bellglass.server.services import services_of

routes = Routes("templates")


@routes.action(
    "GET", "/v1/templates", "template.list", access="any", answer="page:TemplateInfo", errors=(NodeUnavailable,)
)
async def list_templates(request: Request) -> Response:
    """What `template` of a create can name."""
    services = services_of(request)
    info = await services.cluster.info(fresh=True)
    found = [replace(template, aliases=services.aliases.of(template.name)) for template in info.templates]
    return page(sorted(found, key=lambda template: template.name), None)
