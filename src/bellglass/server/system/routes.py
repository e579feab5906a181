"""/v1/health, /v1/node and /v1/openapi.json."""

from __future__ import annotations

import os

from fastapi import Request
from starlette.responses import Response

from bellglass import __version__
from bellglass.errors import NodeUnavailable
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer
from bellglass.server.sandboxes import store
from bellglass.server.services import services_of

routes = Routes("system")


@routes.action(
    "GET", "/v1/health", "health.get", access="public", answer=dict,
    answer_example={"status": "ok", "version": __version__, "node": "up"},
)  # fmt: skip
async def health(request: Request) -> Response:
    """Whether the server answers, and whether it reaches its node. Needs no key."""
    node = "up" if services_of(request).cluster.up() else "down"
    return answer({"status": "ok", "version": __version__, "node": node})


@routes.action(
    "GET", "/v1/node", "node.get", access="admin", answer=dict, errors=(NodeUnavailable,),
    answer_example={"node_id": "local", "tiers": [], "templates": [], "capacity": {}, "sandboxes": {"running": 1}},
)  # fmt: skip
async def node(request: Request) -> Response:
    """What the node says of itself, and how many sandboxes there are by state."""
    services = services_of(request)
    info = await services.cluster.info(fresh=True)
    counts = await services.reader.in_thread(store.counts)
    sinks = [await shipper.status() for shipper in services.shippers]
    server = {"version": __version__, "pid": os.getpid(), "event_sinks": sinks}
    return answer({**info.raw, "sandboxes": counts, "server": server})


@routes.action("GET", "/v1/openapi.json", "openapi.get", access="public", answer=dict)
async def openapi(request: Request) -> Response:
    """This description. Needs no key."""
    from bellglass.server.system.openapi import describe

    return answer(describe(request.app))
