"""GET /files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from fastapi import Request
from starlette.responses import Response
from starlette.types import Scope, Send

from bellglass.errors import BellglassError, FileTypeMismatch
from bellglass.link import LinkStream
from bellglass.server.auth.principal import KeyState
from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.errors import plain_error
from bellglass.server.compat.e2b.envd.files import encodings
from bellglass.server.compat.e2b.envd.files.access import one
from bellglass.server.compat.e2b.envd.files.paths import acting, checked
from bellglass.server.files import ranges
from bellglass.server.http.streams import Head, LinkResponse

OCTETS = "application/octet-stream"
_CONDITIONS = ("range", "if-range", "if-modified-since", "if-unmodified-since")


async def download(call: Call, key: KeyState) -> Response:
    """The bytes of a file, or of a part of it. Raises BellglassError."""
    call.acts("file.read")
    request, files = call.request, call.services.files
    compressed = encodings.choose(request.headers.get("accept-encoding"))
    params: dict[str, Any] = {"path": checked(one(request, "path") or ""), **acting(call)}
    span = None
    if not compressed and any(name in request.headers for name in _CONDITIONS):
        found = await files.call(
            call.project_id, call.sandbox_id, "file.stat", {**params, "follow": True}, call.request_id
        )
        info = found["info"]
        if info["type"] != "file":
            raise FileTypeMismatch(f"path: {params['path']!r} is a {info['type']}, not a file")
        if (early := _condition(request, info)) is not None:
            return early
        wanted = ranges.parse(request.headers.get("range")) if _range_holds(request, info) else None
        if wanted is not None:
            span = ranges.resolve(wanted, info["size"])
            params.update(offset=span.offset, length=span.length)
    stream = await files.open(call.project_id, call.sandbox_id, "file.read", params, call.request_id)
    try:
        result = (await stream.head())["result"]
    except BellglassError:
        await stream.reset()
        raise
    if compressed:
        return _Compressed(stream, key, _headers(result["info"]) | {"content-encoding": "gzip"})
    head = _head(result, span)
    return LinkResponse(stream, key, lambda _: head)


def _head(result: dict[str, Any], span: ranges.Span | None) -> Head:
    headers = _headers(result["info"]) | {"content-length": str(result["length"]), "accept-ranges": "bytes"}
    if span is None or result["length"] <= 0:
        return Head(200, headers)
    last = span.offset + result["length"] - 1
    return Head(206, headers | {"content-range": f"bytes {span.offset}-{last}/{result['info']['size']}"})


def _headers(info: dict[str, Any]) -> dict[str, str]:
    # What a sandbox made must not run as a page of this origin.
    name = quote(info["name"].encode("utf-8", "surrogatepass"), safe="")
    return {
        "content-type": OCTETS,
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "x-content-type-options": "nosniff",
        "last-modified": format_datetime(_changed_at(info), usegmt=True),
        "vary": "Accept-Encoding",
    }


def _changed_at(info: dict[str, Any]) -> datetime:
    """To the second, as HTTP counts."""
    return datetime.fromisoformat(info["mtime"]).astimezone(UTC).replace(microsecond=0)


def _date(request: Request, name: str) -> datetime | None:
    """What is no date is ignored, as HTTP wants it."""
    try:
        given = parsedate_to_datetime(request.headers.get(name, ""))
    except (ValueError, OverflowError):
        return None
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


def _condition(request: Request, info: dict[str, Any]) -> Response | None:
    """304 or 412 where that is the answer."""
    changed_at = _changed_at(info)
    if (unchanged := _date(request, "if-unmodified-since")) is not None and changed_at > unchanged:
        return plain_error(412, "the file was changed since")
    if (since := _date(request, "if-modified-since")) is not None and changed_at <= since:
        return Response(status_code=304, headers=_headers(info))
    return None


def _range_holds(request: Request, info: dict[str, Any]) -> bool:
    """False where If-Range names another state of the file: then all of it is the answer."""
    return "if-range" not in request.headers or _date(request, "if-range") == _changed_at(info)


class _Compressed(LinkResponse):
    """The same bytes as gzip, of no length that is known before."""

    def __init__(self, stream: LinkStream, key: KeyState, headers: dict[str, str]) -> None:
        super().__init__(stream, key)
        self._fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

    async def _pass_on(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._fields})
        try:
            async for piece in encodings.compress(_bytes_of(self._stream)):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except BellglassError:
            return  # cut: a client must never take half for all
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _bytes_of(stream: LinkStream) -> AsyncIterator[bytes]:
    async for chunk in stream:
        yield bytes(chunk)
