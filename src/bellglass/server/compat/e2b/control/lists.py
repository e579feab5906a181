"""Lists of E2B's API: filters as its clients encode them, and pages by header."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import Response

from bellglass.errors import InvalidRequest
from bellglass.model import State, format_time
from bellglass.server.compat.e2b.actions import Routes, services_of
from bellglass.server.compat.e2b.control import shapes
from bellglass.server.http.answers import array
from bellglass.server.http.validation import shown
from bellglass.server.sandboxes.store import Filters
from bellglass.server.services import principal_of

MAX_LIMIT = 100
NEXT = "X-Next-Token"
STATES = ("running", "paused")
routes = Routes()


@routes.action("GET", "/v2/sandboxes", "sandbox.list")
async def list_sandboxes(request: Request) -> Response:
    services, query = services_of(request), request.query_params
    states = [state for value in query.getlist("state") for state in value.split(",")] or list(STATES)
    for state in states:
        if state not in STATES:
            raise InvalidRequest(f"state: {shown(state)} is neither running nor paused")
    if "running" not in states:
        return array([])
    filters = Filters(
        (State.RUNNING,), None, None, metadata_of(query.get("metadata", "")),
        await _template(request), _since(query.get("startedAfter")), _order(request),
    )  # fmt: skip
    items, cursor = await services.sandboxes.list(
        principal_of(request).project, filters, _limit(query.get("limit")), query.get("nextToken") or None
    )
    return array([shapes.listed(item) for item in items], {NEXT: cursor} if cursor else {})


@routes.action("GET", "/sandboxes", "sandbox.list")
async def list_running(request: Request) -> Response:
    """All at once, as the first clients ask."""
    services = services_of(request)
    filters = Filters((State.RUNNING,), None, None, metadata_of(request.query_params.get("metadata", "")))
    found, cursor = await services.sandboxes.list(principal_of(request).project, filters, 1000, None)
    while cursor is not None:
        more, cursor = await services.sandboxes.list(principal_of(request).project, filters, 1000, cursor)
        found += more
    return array([shapes.listed(item) for item in found])


def metadata_of(text: str) -> tuple[tuple[str, str], ...]:
    """Of a query's value: a form whose names and values are percent-encoded once more each."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict") if text else []
        return tuple((unquote(key, errors="strict"), unquote(value, errors="strict")) for key, value in pairs)
    except ValueError:
        raise InvalidRequest(f"metadata: {shown(text)} is not KEY=VALUE&...") from None


async def _template(request: Request) -> str | None:
    name, services = request.query_params.get("template"), services_of(request)
    return services.aliases.resolve(name, await services.cluster.info()) if name else None


def _since(text: str | None) -> str | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest(f"startedAfter: {shown(text)} is no time with a zone, as in RFC 3339")
    try:
        return format_time(moment)
    except OverflowError:
        raise InvalidRequest(f"startedAfter: {shown(text)} is no time of the years 1 to 9999") from None


def _order(request: Request) -> bool:
    """Whether the oldest come first."""
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order: {shown(order)} is neither asc nor desc")
    return order == "asc"


def _limit(text: str | None) -> int:
    if text is None:
        return MAX_LIMIT
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit: {shown(text)} is not a number from 1 to {MAX_LIMIT}")
    return limit
