"""POST /files: one file as the body, or any number of them as a form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from starlette.responses import Response

from bellglass.errors import InvalidRequest, NodeUnavailable, TooLarge
from bellglass.link import LinkStream
from bellglass.server.auth.principal import KeyState
from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.connect import media_type_of
from bellglass.server.compat.e2b.envd.errors import json_answer
from bellglass.server.compat.e2b.envd.files import encodings, metadata
from bellglass.server.compat.e2b.envd.files.access import one
from bellglass.server.compat.e2b.envd.files.forms import Form, Part
from bellglass.server.compat.e2b.envd.files.paths import acting, checked
from bellglass.server.http.bodies import check_length, stream_body
from bellglass.units import format_size
from bellglass.wire.frames import MAX_DATA

FORM, OCTETS = "multipart/form-data", "application/octet-stream"
FIELD = "file"
MAX_FILES = 1000
"""Of one form."""


class Upload:
    """One request. `run` answers; it raises BellglassError."""

    def __init__(self, call: Call, key: KeyState) -> None:
        self._call = call
        self._key = key
        self._limit = call.services.settings["server.max_file"]
        self._attributes = metadata.of_headers(call.request.headers)
        self._path = one(call.request, "path")
        self._written: list[dict[str, Any]] = []

    async def run(self) -> Response:
        request = self._call.request
        self._call.acts("file.write")
        kind = media_type_of(request.headers)
        if kind not in (FORM, OCTETS):
            raise InvalidRequest(f"content-type {kind[:80]!r} is neither {FORM} nor {OCTETS}")
        check_length(request, self._limit)
        body, unpacked = self._body(request)
        if kind == OCTETS:
            if not self._path:
                raise InvalidRequest("path: is missing", details={"field": "path"})
            await self._one(self._path, body, self._length(request, unpacked))
        else:
            await self._form(Form(request.headers["content-type"]), body)
        return json_answer(self._written)

    def _body(self, request: Request) -> tuple[AsyncIterator[bytes], bool]:
        """The body's bytes, and whether they came packed."""
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        sent = stream_body(request, self._limit)
        if encoding in ("identity", ""):
            return sent, False
        if encoding == "gzip":
            return self._bounded(encodings.decompress(sent)), True
        raise InvalidRequest(f"content-encoding {encoding[:40]!r} is neither gzip nor identity")

    async def _bounded(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in chunks:
            size += len(chunk)
            if size > self._limit:
                raise TooLarge(f"more than {format_size(self._limit)} unpacked")
            yield chunk

    def _length(self, request: Request, unpacked: bool) -> int | None:
        return None if unpacked else check_length(request, self._limit)

    async def _one(self, path: str, body: AsyncIterator[bytes], length: int | None) -> None:
        async with await self._open(path, length) as stream:
            writer = _Writer(stream)
            async for chunk in body:
                await writer.send(chunk)
            await self._finish(writer)

    async def _form(self, form: Form, body: AsyncIterator[bytes]) -> None:
        writer: _Writer | None = None
        try:
            async for piece in form.read(body):
                if isinstance(piece, Part):
                    writer = await self._part(piece)
                elif piece is None:
                    if writer is not None:
                        await self._finish(writer)
                        await writer.stream.__aexit__(None, None, None)
                        writer = None
                elif writer is not None:
                    await writer.send(piece)
        finally:
            if writer is not None:
                await writer.stream.reset()
                self._key.cuts.discard(writer.stream.cancel)
        if not self._written:
            raise InvalidRequest(f"the form has no part {FIELD!r}", details={"field": FIELD})

    async def _part(self, part: Part) -> _Writer | None:
        """None for one that is passed over."""
        if part.name != FIELD:
            return None
        if len(self._written) >= MAX_FILES:
            raise InvalidRequest(f"more than {MAX_FILES} files in one form", details={"field": FIELD})
        if self._path and self._written:
            raise InvalidRequest("path: names one file, and the form has several", details={"field": "path"})
        path = self._path or part.filename
        if not path:
            raise InvalidRequest("path: neither the URL nor the part names a file", details={"field": "path"})
        return _Writer(await self._open(path, None))

    async def _open(self, path: str, length: int | None) -> LinkStream:
        params = {
            **acting(self._call), "path": checked(path), "in_place": True, "truncate": True, "offset": 0,
            "parents": True, "attributes": self._attributes, "expected_bytes": length, "max_bytes": self._limit,
        }  # fmt: skip
        call = self._call
        stream = await call.services.files.open(
            call.project_id, call.sandbox_id, "file.write", params, call.request_id, body=True
        )
        self._key.cuts.add(stream.cancel)
        return stream

    async def _finish(self, writer: _Writer) -> None:
        try:
            await writer.flush()
            await writer.stream.end()
            info = (await writer.stream.head())["result"]["info"]
        finally:
            self._key.cuts.discard(writer.stream.cancel)
        written: dict[str, Any] = {"name": info["name"], "path": info["path"], "type": "file"}
        if kept := metadata.metadata_of(info):
            written["metadata"] = kept
        self._written.append(written)


class _Writer:
    """Few large pieces: each costs every hop behind about the same whatever it holds."""

    def __init__(self, stream: LinkStream) -> None:
        self.stream = stream
        self._held: list[bytes] = []
        self._held_bytes = 0

    async def send(self, chunk: bytes) -> None:
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        if self._held_bytes > MAX_DATA - MAX_DATA // 4:
            await self.flush()

    async def flush(self) -> None:
        if self._held:
            whole = b"".join(self._held)
            self._held, self._held_bytes = [], 0
            try:
                await self.stream.send(whole)
            except NodeUnavailable:
                # What the node has said of it counts for more than that it hung up.
                await self.stream.head()
                raise
