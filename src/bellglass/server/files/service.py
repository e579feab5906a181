"""Calls for files: one indexed read, then the link. Nothing of a path is resolved on this side."""

from __future__ import annotations

import json
from typing import Any

from bellglass.errors import FileTypeMismatch, InternalError
from bellglass.link import LinkStream
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.db.reader import Reader
from bellglass.server.files import attributes
from bellglass.server.files.paths import check_path
from bellglass.server.files.watching import Watching
from bellglass.server.sandboxes import guard
from bellglass.server.sandboxes.validate import check_user

MAX_ENTRIES = 10_000
MAX_ARCHIVE_ENTRIES = 1_000_000
READING = frozenset({"file.read", "file.list", "file.stat", "file.archive_read"})
"""Also of a sandbox that was lost with its node."""
_MAX_ANSWER = 64 * 2**20


class Files:
    def __init__(self, reader: Reader, cluster: ClusterEngine) -> None:
        self._reader = reader
        self._cluster = cluster

    async def call(
        self, project_id: str, sandbox_id: str, op: str, params: dict[str, Any], request_id: str
    ) -> dict[str, Any]:
        """An operation without bodies; its result. One that is too large for a head comes as the answer's body."""
        stream = await self.open(project_id, sandbox_id, op, params, request_id)
        async with stream:
            head = await stream.head()
            result: dict[str, Any] = head.get("result") or {}
            try:
                raw = await stream.read_all(_MAX_ANSWER)
            except ValueError as error:
                raise InternalError(f"{op}: the node's answer is too large") from error
        return json.loads(raw) if raw else result

    async def open(
        self, project_id: str, sandbox_id: str, op: str, params: dict[str, Any], request_id: str, *, body: bool = False
    ) -> LinkStream:
        """Start an operation. `params` has the paths; the sandbox, the base of relative ones and the user are added
        where they are not given. The base `~` is the home of the owner, else of the user."""
        for field in ("path", "source", "destination"):
            if field in params:
                check_path(params[field], field)
        check_user(params.get("user"))
        check_user(params.get("owner"), "owner")
        attributes.check(params.get("attributes"))
        find = guard.on_disk if op in READING else guard.running
        target = find(self._reader, project_id, sandbox_id)
        settled = {**target.ref, "base": target.workdir, **params, "user": params.get("user") or target.user}
        return await self._cluster.open(target.node_id, op, settled, request_id=request_id, body=body)

    async def watch(
        self,
        project_id: str,
        sandbox_id: str,
        path: str,
        request_id: str,
        *,
        recursive: bool = False,
        user: str | None = None,
        **more: Any,
    ) -> Watching:
        """What changes in a folder from now on. Raises FileMissing, FileTypeMismatch, FilePermission, LimitExceeded."""
        params = {"path": path, "user": user, "recursive": recursive, **more}
        stream = await self.open(project_id, sandbox_id, "file.watch", params, request_id, body=True)
        try:
            await stream.head()
        except BaseException:
            stream.cancel()
            raise
        return Watching(stream)

    async def stat_file(
        self, project_id: str, sandbox_id: str, path: str, user: str | None, request_id: str
    ) -> dict[str, Any]:
        """FileInfo of a regular file, symlinks followed. Raises FileTypeMismatch for anything else."""
        params = {"path": path, "user": user, "follow": True}
        result = await self.call(project_id, sandbox_id, "file.stat", params, request_id)
        info: dict[str, Any] = result["info"]
        if info["type"] != "file":
            raise FileTypeMismatch(
                f"path: {path!r} is a {info['type']}, not a file", details={"field": "path", "type": info["type"]}
            )
        return info
