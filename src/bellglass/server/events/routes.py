"""/v1/events and /v1/sandboxes/{id}/events."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from bellglass.errors import InvalidRequest, NotFound
from bellglass.server.events.service import parse_cursor, parse_since, parse_types
from bellglass.server.events.store import Selection
from bellglass.server.events.stream import EventStream
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import page
from bellglass.server.identity.access import check_follow
from bellglass.server.sandboxes.service import labels_of
from bellglass.server.services import principal_of, project_of, services_of

routes = Routes("events")

Types = Annotated[list[str], Query(description="such as `egress.refused` or `egress.*`, repeatable; by default all")]
Since = Annotated[str | None, Query(description="a time, or a duration back from now such as `15m`")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(description="go on behind it: `cursor` of a page, or `seq` of an event")]
Tail = Annotated[int | None, Query(ge=0, le=1000, description="the newest of them instead of the oldest")]
Follow = Annotated[bool, Query(description="NDJSON without an end: an event a line, an empty line in each silence")]


@routes.action("GET", "/v1/sandboxes/{sandbox_id}/events", "event.list", answer="page:Event", errors=(NotFound,))
async def of_sandbox(
    request: Request,
    sandbox_id: str,
    type: Types = [],  # noqa: B006
    since: Since = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    tail: Tail = None,
    follow: Follow = False,
) -> Response:
    """What happened to a sandbox, oldest first: its states, its network, its ports, each refusal of its egress.

    It can be read until the events' retention ends, also after the sandbox was deleted. `cursor` of a page goes on
    behind it, also where it was the newest."""
    project_id = project_of(request)
    services_of(request).events.check_sandbox(project_id, sandbox_id)
    selection = Selection(project_id, sandbox_id, parse_types(type), parse_since(since))
    return await _answer(request, selection, limit, cursor, tail, follow=follow)


@routes.action("GET", "/v1/events", "event.list_all", answer="page:Event", errors=(NotFound,))
async def of_project(
    request: Request,
    sandbox: Annotated[str | None, Query(description="id of a sandbox")] = None,
    owner: Annotated[str | None, Query(description="of sandboxes that this owner has, while they can be read")] = None,
    label: Annotated[list[str], Query(description="KEY=VALUE of sandboxes, repeatable; all must fit")] = [],  # noqa: B006
    type: Types = [],  # noqa: B006
    since: Since = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    tail: Tail = None,
    follow: Follow = False,
) -> Response:
    """What happened to all sandboxes of the project and to itself, oldest first."""
    project_id = project_of(request)
    if sandbox is not None:
        services_of(request).events.check_sandbox(project_id, sandbox)
    selection = Selection(project_id, sandbox, parse_types(type), parse_since(since), owner, labels_of(label))
    return await _answer(request, selection, limit, cursor, tail, follow=follow)


async def _answer(
    request: Request, selection: Selection, limit: int, cursor: str | None, tail: int | None, *, follow: bool
) -> Response:
    if tail is not None and cursor is not None:
        raise InvalidRequest("tail: it excludes cursor", hint="leave one of them out", details={"field": "tail"})
    if follow:
        check_follow(principal_of(request))
    services, after = services_of(request), parse_cursor(cursor)
    if tail is not None:
        batch = await services.events.newest(selection, tail)
    else:
        batch = await services.events.after(selection, after, limit)
    if follow:
        return EventStream(
            services.events, selection, batch, principal_of(request).key, services.settings["server.keepalive"]
        )
    return page(batch.events, str(batch.through))
