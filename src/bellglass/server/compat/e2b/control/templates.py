"""Templates, as far as E2B's clients ask whether there is one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from bellglass.errors import InvalidRequest, NotFound
from bellglass.server.compat.e2b.actions import Routes, services_of
from bellglass.server.http.answers import answer
from bellglass.server.sandboxes.validate import find_template

routes = Routes()


@routes.action("GET", "/templates/aliases/{alias:path}", "template.list")
async def by_alias(request: Request) -> Response:
    services = services_of(request)
    info = await services.cluster.info(fresh=True)
    try:
        found = find_template(services.aliases.resolve(request.path_params["alias"], info), info)
    except InvalidRequest as error:
        raise NotFound(error.message, hint=error.hint) from None
    return answer({"templateID": found.name, "public": True})
