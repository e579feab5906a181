"""/v1/sandboxes/{id}/files/{list,stat,mkdir,move}."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from bellglass.errors import DiskFull, FileExists, TooLarge
from bellglass.model import FileInfo
from bellglass.server.files.bodies import MakeDirectory, MoveFile
from bellglass.server.files.paths import mode_bits
from bellglass.server.files.routes import FILES, READING, Path, User
from bellglass.server.files.service import MAX_ENTRIES
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer, no_content
from bellglass.server.http.bodies import read_record
from bellglass.server.http.context import context_of
from bellglass.server.services import project_of, services_of

routes = Routes("files")
CHANGING = (*READING, FileExists, DiskFull, TooLarge)


@routes.action("GET", FILES + "/list", "file.list", answer="list:FileInfo", errors=READING)
async def list_files(
    request: Request,
    sandbox_id: str,
    path: Path = ".",
    user: User = None,
    recursive: bool = False,
    depth: Annotated[int | None, Query(ge=1, le=1000, description="so many levels; implies recursive")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = 1000,
) -> Response:
    """What a folder holds, each folder before what is in it; `truncated` if there is more than `limit`."""
    params = {"path": path, "user": user, "recursive": recursive, "depth": depth, "limit": limit}
    result = await services_of(request).files.call(
        project_of(request), sandbox_id, "file.list", params, context_of(request).request_id
    )
    return answer({"items": result["entries"], "truncated": result["truncated"]})


@routes.action("GET", FILES + "/stat", "file.stat", answer=FileInfo, errors=READING)
async def stat(
    request: Request,
    sandbox_id: str,
    path: Path,
    user: User = None,
    follow: Annotated[bool, Query(description="the target of a symlink instead of itself")] = True,
) -> Response:
    """What a path is."""
    params = {"path": path, "user": user, "follow": follow}
    result = await services_of(request).files.call(
        project_of(request), sandbox_id, "file.stat", params, context_of(request).request_id
    )
    return answer(result["info"])


@routes.action(
    "POST", FILES + "/mkdir", "file.mkdir", body=MakeDirectory, answer=FileInfo,
    example={"path": "job/out", "permissions": "0755"}, errors=CHANGING,
)  # fmt: skip
async def mkdir(request: Request, sandbox_id: str) -> Response:
    """Make a folder, by default with those above it; one that exists is left as it is."""
    services = services_of(request)
    body = await read_record(request, MakeDirectory, services.settings["server.max_body"])
    params = {
        "path": body.path, "user": body.user, "parents": body.parents, "mode_bits": mode_bits(body.permissions),
        "exist_ok": body.exist_ok, "owner": body.owner,
    }  # fmt: skip
    result = await services.files.call(
        project_of(request), sandbox_id, "file.mkdir", params, context_of(request).request_id
    )
    return answer(result["info"])


@routes.action(
    "POST", FILES + "/move", "file.move", body=MoveFile, status=204,
    example={"source": "job/out", "destination": "done/out"}, errors=CHANGING,
)  # fmt: skip
async def move(request: Request, sandbox_id: str) -> Response:
    """Rename within the sandbox; 409 if the destination exists and `overwrite` is not set."""
    services = services_of(request)
    body = await read_record(request, MoveFile, services.settings["server.max_body"])
    params = {
        "source": body.source, "destination": body.destination, "user": body.user, "overwrite": body.overwrite,
        "parents": body.parents, "owner": body.owner,
    }  # fmt: skip
    await services.files.call(project_of(request), sandbox_id, "file.move", params, context_of(request).request_id)
    return no_content()
