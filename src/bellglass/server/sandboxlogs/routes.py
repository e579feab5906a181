"""/v1/sandboxes/{id}/logs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request
from starlette.responses import Response

from bellglass.errors import NodeUnavailable, NotFound
from bellglass.model import LogPage
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer
from bellglass.server.http.context import context_of
from bellglass.server.http.moments import parse_moment
from bellglass.server.sandboxlogs.service import LogQuery
from bellglass.server.services import project_of, services_of

routes = Routes("logs")


@routes.action(
    "GET", "/v1/sandboxes/{sandbox_id}/logs", "logs.get", answer=LogPage, errors=(NotFound, NodeUnavailable)
)  # fmt: skip
async def get(
    request: Request,
    sandbox_id: str,
    direction: Annotated[Literal["forward", "backward"], Query(description="oldest or newest first")] = "forward",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`cursor` of the page before, with the same filters")] = None,
    start: Annotated[str | None, Query(description="a time, or a duration back from now such as `15m`")] = None,
    end: Annotated[str | None, Query(description="the same")] = None,
    search: Annotated[str | None, Query(max_length=1000, description="text that a line has to hold")] = None,
    execution: Annotated[str | None, Query(description="only lines of this execution")] = None,
) -> Response:
    """What a sandbox's executions wrote and what happened to it, line by line in the order of time.

    Forward, `cursor` goes on also where the page was the newest: ask again later. Lines are kept as long as the logs of
    their executions; an unfinished line is told once a second has brought no more of it."""
    query = LogQuery(
        backward=direction == "backward", limit=limit, cursor=cursor, start=parse_moment(start, "start"),
        end=parse_moment(end, "end"), search=search or None, execution_id=execution,
    )  # fmt: skip
    return answer(
        await services_of(request).logs.page(project_of(request), sandbox_id, query, context_of(request).request_id)
    )
