"""Files of the fake API: what lies in a sandbox's folder."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bellglass import errors
from bellglass.model import now
from tests.unit.fake_api.fake_state import State


class Files:
    def __init__(self, state: State) -> None:
        self._state = state
        self.routes = [
            Route("/v1/sandboxes/{id}/files", self.files, methods=["GET", "PUT", "DELETE"]),
            Route("/v1/sandboxes/{id}/files/archive", self.archives, methods=["GET", "PUT"]),
            Route("/v1/sandboxes/{id}/files/{what}", self.file_call, methods=["GET", "POST"]),
        ]

    def _place(self, request: Request, path: str | None = None) -> Path:
        box = self._state.box(request)
        return Path(box["workdir"]) / (path or request.query_params["path"])

    def _info(self, path: Path, digest: str | None = None) -> dict[str, Any]:
        try:
            status = path.lstat()
        except FileNotFoundError as error:
            raise errors.FileMissing(f"{path}: there is no such file") from error
        return {
            "path": str(path),
            "name": path.name,
            "type": "dir" if path.is_dir() else "file",
            "size": status.st_size,
            "mode": f"{status.st_mode & 0o7777:04o}",
            "uid": status.st_uid,
            "gid": status.st_gid,
            "user": "user",
            "group": "user",
            "mtime": now(),
            "allocated_bytes": 0,
            "target": None,
            "sha256": digest,
        }

    async def files(self, request: Request) -> Response:
        place = self._place(request)
        query = request.query_params
        if request.method == "DELETE":
            self._info(place)
            shutil.rmtree(place) if place.is_dir() else place.unlink()
            return Response(status_code=204)
        if request.method == "GET":
            if place.is_dir():
                raise errors.FileTypeMismatch(f"{place} is a folder")
            info = self._info(place)
            data = place.read_bytes()
            headers = {"x-bellglass-file-info": json.dumps(info)}
            if wanted := request.headers.get("range"):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                if int(first) >= len(data):
                    return JSONResponse({"error": {"code": "range_not_satisfiable", "message": "no"}}, 416)
                data = data[int(first) : int(last) + 1 if last else None]
                return Response(data, 206, headers=headers, media_type="application/octet-stream")
            return Response(data, headers=headers, media_type="application/octet-stream")
        if query.get("parents") == "true":
            place.parent.mkdir(parents=True, exist_ok=True)
        if query.get("exclusive") == "true" and place.exists():
            raise errors.FileExists(f"{place} is there")
        digest = hashlib.sha256()
        fresh = query.get("mode") != "in_place" or not place.exists()
        with open(place, "wb" if fresh else "r+b") as file:
            file.seek(int(query.get("offset", 0)))
            async for chunk in request.stream():
                digest.update(chunk)
                file.write(chunk)
        if permissions := query.get("permissions"):
            place.chmod(int(permissions, 8))
        shown = "f" * 64 if self._state.corrupt_uploads else digest.hexdigest()
        return JSONResponse(self._info(place, shown), 201)

    async def archives(self, request: Request) -> Response:
        place = self._place(request)
        if request.method == "GET":
            if self._state.archive is not None:
                return Response(self._state.archive, media_type="application/x-tar")
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for child in sorted(place.iterdir()):
                    archive.add(child, child.name)
            return Response(buffer.getvalue(), media_type="application/x-tar")
        place.mkdir(parents=True, exist_ok=True)
        body = await request.body()
        with tarfile.open(fileobj=io.BytesIO(body)) as archive:
            names = archive.getnames()
            archive.extractall(place)
        return JSONResponse({"entries": len(names), "bytes": len(body)})

    async def file_call(self, request: Request) -> Response:
        what = request.path_params["what"]
        if what == "stat":
            return JSONResponse(self._info(self._place(request)))
        if what == "list":
            recursive = request.query_params.get("recursive") == "true"
            place = self._place(request)
            found = sorted(place.rglob("*") if recursive else place.iterdir())
            limit = int(request.query_params.get("limit", 10_000))
            items = [self._info(path) for path in found[:limit]]
            return JSONResponse({"items": items, "truncated": len(found) > limit})
        body = await request.json()
        self._state.bodies.append(body)
        if what == "mkdir":
            self._place(request, body["path"]).mkdir(parents=body["parents"], exist_ok=body["exist_ok"])
        else:
            destination = self._place(request, body["destination"])
            if destination.exists() and not body["overwrite"]:
                raise errors.FileExists(f"{destination} is there")
            self._place(request, body["source"]).rename(destination)
        return JSONResponse({})
