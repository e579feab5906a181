"""/v1/sandboxes/{id}/metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from bellglass.errors import NodeUnavailable, NotFound, NotSupported
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import page
from bellglass.server.http.context import context_of
from bellglass.server.http.moments import parse_moment
from bellglass.server.services import project_of, services_of

routes = Routes("metrics")


@routes.action(
    "GET", "/v1/sandboxes/{sandbox_id}/metrics", "metrics.get", answer="page:SandboxMetrics",
    errors=(NotFound, NotSupported, NodeUnavailable),
)  # fmt: skip
async def get(
    request: Request,
    sandbox_id: str,
    start: Annotated[str | None, Query(description="a time, or a duration back from now such as `15m`")] = None,
    end: Annotated[str | None, Query(description="the same; by default now")] = None,
    limit: Annotated[int | None, Query(ge=1, le=10_000, description="the newest of them")] = None,
) -> Response:
    """What a sandbox uses, oldest first: a sample every few seconds for the last hour, one a minute for the day before.

    Of a running one the last sample is of now. One that ended by itself keeps its own until its retention ends."""
    samples = await services_of(request).metrics.history(
        project_of(request), sandbox_id, parse_moment(start, "start"), parse_moment(end, "end"), limit,
        context_of(request).request_id,
    )  # fmt: skip
    return page(samples, None)
