"""/v1/sandboxes/{id}/files: contents of one path, and archives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from starlette.responses import Response

from bellglass import faultpoints
from bellglass.errors import (
    AgentLost,
    ArchiveRefused,
    Conflict,
    DiskFull,
    FileExists,
    FileMissing,
    FilePermission,
    FileTypeMismatch,
    InvalidRequest,
    LimitExceeded,
    NoCapacity,
    NodeUnavailable,
    NotFound,
    NotSupported,
    RangeNotSatisfiable,
    SandboxGone,
    TooLarge,
)
from bellglass.model import FileInfo
from bellglass.server.files import attributes, ranges
from bellglass.server.files.paths import mode_bits
from bellglass.server.files.service import MAX_ARCHIVE_ENTRIES
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer, no_content
from bellglass.server.http.bodies import check_length, send_body
from bellglass.server.http.context import context_of
from bellglass.server.http.streams import Head, LinkResponse
from bellglass.server.services import principal_of, project_of, services_of

routes = Routes("files")
FILES = "/v1/sandboxes/{sandbox_id}/files"
OCTETS, TAR = "application/octet-stream", "application/x-tar"
INSIDE = (NotFound, SandboxGone, Conflict, AgentLost, NodeUnavailable)
READING = (*INSIDE, LimitExceeded, NoCapacity, FileMissing, FilePermission, FileTypeMismatch)
WRITING = (*READING, FileExists, DiskFull, TooLarge)
Path = Annotated[str, Query(description="absolute, or from the sandbox's workdir", examples=["job/sales.csv"])]
User = Annotated[str | None, Query(description="who acts; by default the sandbox's user")]


@routes.action(
    "GET", FILES, "file.read", answer=OCTETS, audited=True, headers={"Range": "one range of bytes: 206"},
    errors=(*READING, RangeNotSatisfiable),
)  # fmt: skip
async def read(request: Request, sandbox_id: str, path: Path, user: User = None) -> Response:
    """The bytes of a file. `X-Bellglass-File-Info` holds its FileInfo as JSON."""
    return await answer_read(request, sandbox_id, path, user)


async def answer_read(
    request: Request, sandbox_id: str, path: str, user: str | None, *, headers: Mapping[str, str] | None = None
) -> Response:
    files, project, request_id = services_of(request).files, project_of(request), context_of(request).request_id
    params: dict[str, Any] = {"path": path, "user": user}
    wanted = ranges.parse(request.headers.get("range"))
    span = None
    if wanted is not None:
        info = await files.stat_file(project, sandbox_id, path, user, request_id)
        span = ranges.resolve(wanted, info["size"])
        params.update(offset=span.offset, length=span.length)
    stream = await files.open(project, sandbox_id, "file.read", params, request_id)
    return LinkResponse(stream, principal_of(request).key, lambda head: file_head(head["result"], span, headers))


@routes.action("HEAD", FILES, "file.head", answer=OCTETS, errors=READING)
async def head(request: Request, sandbox_id: str, path: Path, user: User = None) -> Response:
    """The headers that GET would have, without the bytes."""
    return await answer_head(request, sandbox_id, path, user)


async def answer_head(
    request: Request, sandbox_id: str, path: str, user: str | None, *, headers: Mapping[str, str] | None = None
) -> Response:
    info = await services_of(request).files.stat_file(
        project_of(request), sandbox_id, path, user, context_of(request).request_id
    )
    rendered = file_head({"info": info, "length": info["size"]}, None, headers)
    return Response(None, rendered.status, dict(rendered.headers))


@routes.action(
    "PUT", FILES, "file.write", body=OCTETS, body_required=False, answer=FileInfo, errors=(*WRITING, NotSupported),
    headers={
        "X-Bellglass-Attributes": "JSON object: becomes the file's extended attributes user.<name>, others go. Without "
        "it a new or replaced file has none, and one written in place keeps its own"
    },
)  # fmt: skip
async def write(
    request: Request,
    sandbox_id: str,
    path: Path,
    user: User = None,
    mode: Annotated[
        Literal["atomic", "in_place"], Query(description="atomic: a new file that replaces; in_place: the same inode")
    ] = "atomic",
    offset: Annotated[int, Query(ge=0, le=2**62, description="in_place: where to begin")] = 0,
    truncate: Annotated[
        bool | None, Query(description="in_place: cut after the end; by default if offset is 0")
    ] = None,
    parents: Annotated[bool, Query(description="make the folders above")] = False,
    permissions: Annotated[str | None, Query(description='octal, such as "0644"')] = None,
    exclusive: Annotated[bool, Query(description="409 if it exists")] = False,
    owner: Annotated[str | None, Query(description="whose a new file and new folders become; as user=root")] = None,
) -> Response:
    """Write a file: 201 new, 200 replaced; the answer's `sha256` is that of the bytes that arrived."""
    services = services_of(request)
    limit = services.settings["server.max_file"]
    if mode == "atomic" and (offset or truncate is not None):
        field = "offset" if offset else "truncate"
        raise InvalidRequest(f"{field}: needs mode=in_place", details={"field": field})
    params = {
        "path": path, "user": user, "mode_bits": mode_bits(permissions), "in_place": mode == "in_place",
        "offset": offset, "truncate": (offset == 0) if truncate is None else truncate, "parents": parents,
        "exclusive": exclusive, "owner": owner, "attributes": attributes.parse(request.headers.get(attributes.HEADER)),
        "expected_bytes": check_length(request, limit), "max_bytes": limit,
    }  # fmt: skip
    stream = await services.files.open(
        project_of(request), sandbox_id, "file.write", params, context_of(request).request_id, body=True
    )
    faultpoints.reach("server.file.opened")
    result = await send_body(request, stream, principal_of(request).key, limit, whole_frames=True)
    faultpoints.reach("server.file.answered")
    return answer(result["info"], 201 if result.get("created") else 200)


@routes.action("DELETE", FILES, "file.remove", status=204, errors=(*READING, FileExists))
async def remove(
    request: Request, sandbox_id: str, path: Path, user: User = None, recursive: bool = False, missing_ok: bool = False
) -> Response:
    """Remove a file, a symlink or an empty folder; with `recursive` a folder with all that is in it."""
    params = {"path": path, "user": user, "recursive": recursive, "missing_ok": missing_ok}
    await services_of(request).files.call(
        project_of(request), sandbox_id, "file.remove", params, context_of(request).request_id
    )
    return no_content()


@routes.action("GET", FILES + "/archive", "file.archive_read", answer=TAR, audited=True, errors=(*READING, TooLarge))
async def archive_read(request: Request, sandbox_id: str, path: Path, user: User = None) -> Response:
    """A folder or file as tar."""
    services = services_of(request)
    params = {
        "path": path, "user": user, "max_bytes": services.settings["server.max_file"],
        "max_entries": MAX_ARCHIVE_ENTRIES,
    }  # fmt: skip
    stream = await services.files.open(
        project_of(request), sandbox_id, "file.archive_read", params, context_of(request).request_id
    )
    return LinkResponse(stream, principal_of(request).key, lambda _: Head(200, {"content-type": TAR}))


@routes.action(
    "PUT", FILES + "/archive", "file.archive_write", body=TAR, answer=dict,
    answer_example={"entries": 3, "bytes": 1234}, errors=(*WRITING, ArchiveRefused),
)  # fmt: skip
async def archive_write(
    request: Request, sandbox_id: str, path: Path, user: User = None, parents: bool = False, overwrite: bool = True
) -> Response:
    """Unpack a tar into a folder; its files replace those of the same name unless `overwrite` is false (409).
    Entries that lead outside of it, devices and the like refuse the whole of it."""
    services = services_of(request)
    limit = services.settings["server.max_file"]
    check_length(request, limit)
    params = {
        "path": path, "user": user, "parents": parents, "overwrite": overwrite, "max_bytes": limit,
        "max_entries": MAX_ARCHIVE_ENTRIES,
    }  # fmt: skip
    stream = await services.files.open(
        project_of(request), sandbox_id, "file.archive_write", params, context_of(request).request_id, body=True
    )
    return answer(await send_body(request, stream, principal_of(request).key, limit, whole_frames=True))


def file_head(result: dict[str, Any], span: ranges.Span | None, more: Mapping[str, str] | None = None) -> Head:
    """Status and headers for the node's `{"info", "length"}`. A file that shrank since it was measured gives less."""
    headers = {
        "content-type": OCTETS,
        "content-length": str(result["length"]),
        "accept-ranges": "bytes",
        "x-bellglass-file-info": json.dumps(result["info"], separators=(",", ":")),
        **(more or {}),
    }
    if span is None:
        return Head(200, headers)
    last = span.offset + result["length"] - 1
    if result["length"] <= 0:
        raise RangeNotSatisfiable("Range: the file has become shorter", details={"size": result["info"]["size"]})
    headers["content-range"] = f"bytes {span.offset}-{last}/{result['info']['size']}"
    return Head(206, headers)
