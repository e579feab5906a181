"""Metrics and logs of E2B's API, from the native ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bellglass.errors import InvalidRequest, NotFound
from bellglass.model import LogLine, SandboxMetrics, parse_time
from bellglass.server.compat.e2b.actions import Routes, services_of
from bellglass.server.compat.e2b.control.sandboxes import running
from bellglass.server.http.answers import answer, array
from bellglass.server.http.context import context_of
from bellglass.server.http.validation import shown
from bellglass.server.sandboxlogs.service import LogQuery
from bellglass.server.services import principal_of

MOST_SAMPLES = 1000
MOST_LINES = 1000
MOST_SANDBOXES = 100
LEVELS = ("debug", "info", "warn", "error")
_LEVEL_OF = {"stderr": "warn", "sandbox.failed": "error"}
routes = Routes()


@routes.action("GET", "/sandboxes/metrics", "metrics.get")
async def newest(request: Request) -> Response:
    """Of several at once, the newest of each; what does not run is left out."""
    ids = [id for text in request.query_params.getlist("sandbox_ids") for id in text.split(",") if id]
    if not 1 <= len(ids) <= MOST_SANDBOXES:
        raise InvalidRequest(f"sandbox_ids: {len(ids)} ids", hint=f"1 to {MOST_SANDBOXES}, with commas between")
    found: dict[str, Any] = {}
    for id in ids:
        try:
            running(request, id)
            samples = await _history(request, id, None, None, 1)
        except NotFound:
            continue
        found |= {id: _sample(samples[-1])} if samples else {}
    return answer({"sandboxes": found})


@routes.action("GET", "/sandboxes/{sandbox_id}/metrics", "metrics.get")
async def metrics(request: Request) -> Response:
    running(request)
    start, end = _seconds(request, "start"), _seconds(request, "end")
    samples = await _history(request, request.path_params["sandbox_id"], start, end, MOST_SAMPLES)
    return array([_sample(sample) for sample in samples])


@routes.action("GET", "/v2/sandboxes/{sandbox_id}/logs", "logs.get")
async def logs(request: Request) -> Response:
    """`cursor` is a time in milliseconds, from which on lines are told, or going back, before which."""
    running(request)
    query = request.query_params
    direction, level = query.get("direction", "forward"), query.get("level")
    if direction not in ("forward", "backward"):
        raise InvalidRequest(f"direction: {shown(direction)} is neither forward nor backward")
    if level is not None and level not in LEVELS:
        raise InvalidRequest(f"level: {shown(level)} is not one of {', '.join(LEVELS)}")
    moment, backward = _milliseconds(request, "cursor"), direction == "backward"
    wanted = LogQuery(
        backward=backward, limit=_limit(request), start=None if backward else moment,
        end=moment if backward else None, search=query.get("search") or None,
    )  # fmt: skip
    return answer({"logs": [_entry(line) async for line in _lines(request, wanted, level)]})


@routes.action("GET", "/sandboxes/{sandbox_id}/logs", "logs.get")
async def logs_v1(request: Request) -> Response:
    running(request)
    wanted = LogQuery(limit=_limit(request), start=_milliseconds(request, "start"))
    lines = [line async for line in _lines(request, wanted, None)]
    return answer(
        {
            "logs": [{"timestamp": line.time, "line": line.text} for line in lines],
            "logEntries": [_entry(line) for line in lines],
        }
    )


# --- inside ---------------------------------------------------------------------------------------------


async def _history(
    request: Request, sandbox_id: str, start: datetime | None, end: datetime | None, limit: int
) -> list[SandboxMetrics]:
    return await services_of(request).metrics.history(
        principal_of(request).project, sandbox_id, start, end, limit, context_of(request).request_id
    )


def _sample(sample: SandboxMetrics) -> dict[str, Any]:
    return {
        "timestamp": sample.time,
        "timestampUnix": int(parse_time(sample.time).timestamp()),
        "cpuCount": max(round(sample.cpus), 1),
        "cpuUsedPct": sample.cpu_percent,
        "memUsed": sample.memory_used_bytes,
        "memTotal": sample.memory_bytes,
        "memCache": sample.memory_cache_bytes,
        "diskUsed": sample.disk_used_bytes,
        "diskTotal": sample.disk_bytes,
    }


async def _lines(request: Request, wanted: LogQuery, level: str | None) -> AsyncIterator[LogLine]:
    """Those of at least this level; a page is of all."""
    least = LEVELS.index(level) if level is not None else 0
    page = await services_of(request).logs.page(
        principal_of(request).project, request.path_params["sandbox_id"], wanted, context_of(request).request_id
    )
    for line in page.items:
        if LEVELS.index(_level(line)) >= least:
            yield line


def _level(line: LogLine) -> str:
    return _LEVEL_OF.get(line.kind, "info")


def _entry(line: LogLine) -> dict[str, Any]:
    fields = {"kind": line.kind} | ({"execution_id": line.execution_id} if line.execution_id else {})
    return {"timestamp": line.time, "message": line.text, "level": _level(line), "fields": fields}


def _limit(request: Request) -> int:
    limit = _number(request, "limit")
    if limit is not None and not 1 <= limit <= MOST_LINES:
        raise InvalidRequest(f"limit: {limit} is not a number from 1 to {MOST_LINES}")
    return MOST_LINES if limit is None else limit


def _seconds(request: Request, name: str) -> datetime | None:
    found = _number(request, name)
    return None if found is None else _moment(found, name)


def _milliseconds(request: Request, name: str) -> datetime | None:
    found = _number(request, name)
    return None if found is None else _moment(found / 1000, name)


def _moment(unix: float, name: str) -> datetime:
    try:
        return datetime.fromtimestamp(unix, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidRequest(f"{name}: {unix:g} is no time") from None


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidRequest(f"{name}: {shown(text)} is not a whole number")
    return int(text)
