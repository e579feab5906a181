"""`box.files`: files in and out of a sandbox, streamed, so that memory stays flat whatever their size.

Relative paths inside start at the sandbox's workdir. What is written is compared by SHA-256 with what the node says
it stored. What is read comes from a sandbox and is not trusted: see `_tar.py` for folders.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path, PurePath
from typing import Any

from bellglass.errors import FileMissing, StreamInterrupted, TooLarge
from bellglass.model import FileInfo
from bellglass.sdk._async._compat import pieces, to_thread
from bellglass.sdk._async.gone import body_of
from bellglass.sdk._async.transport import AsyncResponse, AsyncTransport
from bellglass.sdk._async.watch import AsyncWatch
from bellglass.sdk._http import sandbox_path, target
from bellglass.sdk._local import (
    TAR,
    Copied,
    PartialFile,
    Progress,
    Sized,
    attributes_header,
    file_info,
    octal,
    range_header,
    spool,
    text_path,
    write_query,
)
from bellglass.sdk._tar import Extraction, pack, plan

# The node syncs to disk before it answers, and a folder of a million files takes its time to go.
_DISK_TIMEOUT_S = 900.0
_NO_SUCH_RANGE = 416
_RemotePath = str | PurePath


class AsyncFiles:
    """The files of one sandbox. `user` is whose rights count: by default the sandbox's user."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str, workdir: Callable[[], str]) -> None:
        self._transport = transport
        self._path = sandbox_path(sandbox_id) + "/files"
        self._workdir = workdir

    # Reading

    async def read_bytes(
        self,
        path: _RemotePath,
        *,
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
        max_bytes: int | None = None,
    ) -> bytes:
        """A file's content, or `length` bytes of it from `offset`. Raises TooLarge when there are over `max_bytes`,
        FileMissing, FilePermission, FileTypeMismatch (a folder, FIFO, device or socket), SandboxGone."""
        content = bytearray()
        async with aclosing(self.read_stream(path, offset=offset, length=length, user=user)) as stream:  # type: ignore[type-var]
            async for chunk in stream:
                content += chunk
                if max_bytes is not None and len(content) > max_bytes:
                    raise TooLarge(f"{path}: there are more than max_bytes={max_bytes} bytes")
        return bytes(content)

    async def read_text(
        self, path: _RemotePath, *, encoding: str = "utf-8", errors: str = "strict", user: str | None = None
    ) -> str:
        """A file's content as text; bytes that are not `encoding` are a UnicodeDecodeError."""
        return (await self.read_bytes(path, user=user)).decode(encoding, errors)

    async def read_stream(
        self, path: _RemotePath, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> AsyncIterator[bytes]:
        """A file's content in pieces of at most some 64 KiB; from its end on there is nothing."""
        if length == 0:
            await self.stat(path, user=user)
            return
        response = await self._open(path, user, range_header(offset, length))
        try:
            if response.status == _NO_SUCH_RANGE:
                return
            async with aclosing(body_of(response, self._transport, self._path)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk
        finally:
            await response.aclose()

    async def download(
        self,
        remote: _RemotePath,
        local: str | Path,
        *,
        user: str | None = None,
        on_progress: Progress | None = None,
    ) -> Path:
        """Copy a file out; `local` may be a folder. It appears as a whole or not at all. Returns where it is."""
        place = Path(local)
        if place.is_dir():
            place /= PurePath(text_path(remote)).name
        response = await self._open(remote, user, {})
        try:
            size = response.headers.get("content-length")
            copied = Copied(int(size) if size is not None else None, on_progress)
            info = file_info(response.headers)
            with PartialFile(place, info.mode if info else None) as partial:
                async with aclosing(body_of(response, self._transport, self._path)) as chunks:  # type: ignore[type-var]
                    async for chunk in chunks:
                        await to_thread(partial.write, chunk)
                        copied.add(len(chunk))
                partial.keep()
        finally:
            await response.aclose()
        return place

    async def _open(self, path: _RemotePath, user: str | None, headers: dict[str, str]) -> AsyncResponse:
        where = target(self._path, {"path": text_path(path), "user": user})
        return await self._transport.open("GET", where, accept="*/*", headers=headers, accepted=_NO_SUCH_RANGE)

    # Writing

    async def write_bytes(
        self,
        path: _RemotePath,
        data: bytes | bytearray | memoryview,
        *,
        permissions: int | str | None = None,
        parents: bool = True,
        exclusive: bool = False,
        in_place: bool = False,
        offset: int | None = None,
        truncate: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        user: str | None = None,
        owner: str | None = None,
    ) -> FileInfo:
        """Write a file: replaced as a whole, or with `in_place` changed where it is, from `offset`.

        It is on disk when this returns. `exclusive` refuses to replace (FileExists), `parents` makes missing folders,
        `permissions` is 0o640 or "0640". `attributes` become the file's extended attributes `user.<name>`, and all that
        it has: without them a file has none, but for one written in place, which keeps its own. `owner` is whose what
        is made becomes (for `user="root"`). Raises FilePermission, FileTypeMismatch, DiskFull, TooLarge, SandboxGone,
        NotSupported (a file system without attributes)."""
        if isinstance(data, str):
            raise TypeError("write_bytes() takes bytes; write_text() takes text")
        raw = bytes(data)
        query = target(
            self._path, write_query(path, permissions, parents, exclusive, in_place, offset, truncate, user, owner)
        )
        answer = await self._transport.request(
            "PUT",
            query,
            content=raw,
            headers=attributes_header(attributes),
            read_timeout_s=_DISK_TIMEOUT_S,
            idempotent=not exclusive,
        )
        return _stored(answer.json(), hashlib.sha256(raw).hexdigest(), path)

    async def write_text(self, path: _RemotePath, text: str, *, encoding: str = "utf-8", **options: Any) -> FileInfo:
        """Write text; options as for `write_bytes`. Line ends stay as they are."""
        return await self.write_bytes(path, text.encode(encoding), **options)

    async def upload(
        self,
        local: str | Path | Any,
        remote: _RemotePath,
        *,
        permissions: int | str | None = None,
        parents: bool = True,
        exclusive: bool = False,
        attributes: Mapping[str, str] | None = None,
        user: str | None = None,
        owner: str | None = None,
        on_progress: Progress | None = None,
    ) -> FileInfo:
        """Copy a file in. `local` is a path, an open binary file, or an iterator of bytes. A path's permissions come
        along unless `permissions` says otherwise. Raises what `write_bytes` raises, and OSError for the local file."""
        with Sized(local) as source:
            mode = permissions if permissions is not None else source.permissions
            query = target(self._path, write_query(remote, mode, parents, exclusive, False, None, None, user, owner))
            digest = hashlib.sha256()
            copied = Copied(source.size, on_progress)

            async def body() -> AsyncIterator[bytes]:
                async for chunk in pieces(source):
                    await to_thread(digest.update, chunk)
                    yield chunk
                    copied.add(len(chunk))

            answer = await self._transport.request(
                "PUT",
                query,
                content=body(),
                length=source.size,
                headers=attributes_header(attributes),
                read_timeout_s=_DISK_TIMEOUT_S,
            )
        return _stored(answer.json(), digest.hexdigest(), remote)

    # Folders

    async def upload_dir(
        self,
        local: str | Path,
        remote: _RemotePath,
        *,
        parents: bool = True,
        overwrite: bool = True,
        user: str | None = None,
        on_progress: Progress | None = None,
    ) -> list[str]:
        """Copy the content of a folder into the folder `remote`, which is made if it is missing. Links that lead out
        of the folder and special files are left out; returns their names. Files that are there already are replaced;
        without `overwrite` one of them raises FileExists."""
        planned = await to_thread(plan, Path(local))
        copied = Copied(planned.size, on_progress)

        async def body() -> AsyncIterator[bytes]:
            async for chunk in pieces(pack(planned)):
                yield chunk
                copied.add(len(chunk))

        fields = {"path": text_path(remote), "parents": parents, "overwrite": overwrite, "user": user}
        query = target(f"{self._path}/archive", fields)
        await self._transport.request(
            "PUT", query, content=body(), length=planned.size, content_type=TAR, read_timeout_s=_DISK_TIMEOUT_S
        )
        return planned.left_out

    async def download_dir(
        self,
        remote: _RemotePath,
        local: str | Path,
        *,
        user: str | None = None,
        max_bytes: int | None = None,
        on_progress: Progress | None = None,
    ) -> list[str]:
        """Copy the content of a folder into the folder `local`, which is made if it is missing.

        Nothing is written outside of `local`, whatever the archive says, and nothing at all when it is refused. Links
        that lead out of the folder and special files are left out; returns their names. Raises ArchiveRefused,
        TooLarge (over `max_bytes`), FileExists (a local folder is where a file should go, or the other way round)."""
        where = target(f"{self._path}/archive", {"path": text_path(remote), "user": user})
        copied = Copied(None, on_progress)
        with spool() as file:
            response = await self._transport.open("GET", where, accept=TAR, read_timeout_s=_DISK_TIMEOUT_S)
            try:
                async with aclosing(body_of(response, self._transport, self._path)) as chunks:  # type: ignore[type-var]
                    async for chunk in chunks:
                        await to_thread(file.write, chunk)
                        copied.add(len(chunk))
                        if max_bytes is not None and copied.done > max_bytes:
                            raise TooLarge(f"{remote}: its archive is over max_bytes={max_bytes}")
            finally:
                await response.aclose()
            extraction = Extraction(file, Path(local))
            return await to_thread(extraction.run)

    async def list(
        self,
        path: _RemotePath = ".",
        *,
        recursive: bool = False,
        depth: int | None = None,
        user: str | None = None,
        limit: int | None = None,
    ) -> list[FileInfo]:
        """What a folder holds, by name; with `recursive` all below it, or `depth` levels of it, each folder before what
        is in it, links not followed.

        Raises TooLarge when there are more than the server lists (or `limit`): nothing is left out in silence."""
        query = {"path": text_path(path), "recursive": recursive or None, "depth": depth, "user": user, "limit": limit}
        answer = await self._transport.request("GET", target(f"{self._path}/list", query), idempotent=True)
        body = answer.json()
        if body.get("truncated"):
            raise TooLarge(
                f"{path}: it holds more than the {len(body['items'])} entries that were listed",
                hint="list its folders one by one, or use download_dir",
            )
        return [FileInfo.from_json(item) for item in body["items"]]

    async def stat(self, path: _RemotePath, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """What a path is; without `follow` a link is told as a link. Raises FileMissing, FilePermission."""
        query = {"path": text_path(path), "follow": follow, "user": user}
        answer = await self._transport.request("GET", target(f"{self._path}/stat", query), idempotent=True)
        return FileInfo.from_json(answer.json())

    async def exists(self, path: _RemotePath, *, user: str | None = None) -> bool:
        """Whether there is something at a path; a link counts by what it leads to."""
        try:
            await self.stat(path, user=user)
        except FileMissing:
            return False
        return True

    async def watch(self, path: _RemotePath = ".", *, recursive: bool = False, user: str | None = None) -> AsyncWatch:
        """What changes in a folder, with `recursive` in all folders below it, from this call on.

        Raises FileMissing, FileTypeMismatch (no folder), LimitExceeded (too many watches, or folders in one)."""
        query = {"path": text_path(path), "recursive": recursive or None, "user": user}
        return await AsyncWatch.open(self._transport, target(f"{self._path}/watch", query))

    async def sign(
        self,
        path: _RemotePath,
        operation: str = "read",
        *,
        expires_in: float | str = "1h",
        user: str | None = None,
    ) -> str:
        """A URL that needs no key: `GET` reads the file, with `operation="write"` `PUT` writes it. It is valid for
        `expires_in` (seconds or "15m", at most 7 days), or until this key is revoked."""
        body = {"path": text_path(path), "operation": operation, "expires_in": expires_in, "user": user}
        signed = await self._transport.request("POST", f"{self._path}/sign", json=body, idempotent=True)
        return self._transport.api_url + str(signed.json()["target"])

    async def mkdir(
        self,
        path: _RemotePath,
        *,
        parents: bool = True,
        exist_ok: bool = True,
        permissions: int | str | None = None,
        user: str | None = None,
    ) -> None:
        """Make a folder. One that exists stays as it is (without `exist_ok`: FileExists)."""
        body = {"path": text_path(path), "parents": parents, "exist_ok": exist_ok}
        if permissions is not None:
            body["permissions"] = octal(permissions)
        if user is not None:
            body["user"] = user
        await self._transport.request("POST", f"{self._path}/mkdir", json=body, idempotent=exist_ok)

    async def move(
        self,
        source: _RemotePath,
        destination: _RemotePath,
        *,
        overwrite: bool = False,
        parents: bool = False,
        user: str | None = None,
    ) -> None:
        """Rename. Raises FileExists where something is at `destination`, unless `overwrite`."""
        body: dict[str, Any] = {
            "source": text_path(source),
            "destination": text_path(destination),
            "overwrite": overwrite,
            "parents": parents,
        }
        if user is not None:
            body["user"] = user
        await self._transport.request("POST", f"{self._path}/move", json=body)

    async def remove(
        self, path: _RemotePath, *, recursive: bool = False, missing_ok: bool = False, user: str | None = None
    ) -> None:
        """Remove a file, a link, an empty folder, or with `recursive` all of a folder. Links are never followed."""
        query = {
            "path": text_path(path),
            "recursive": recursive or None,
            "missing_ok": missing_ok or None,
            "user": user,
        }
        await self._transport.request(
            "DELETE", target(self._path, query), idempotent=missing_ok, read_timeout_s=_DISK_TIMEOUT_S
        )


def _stored(body: Any, digest: str, path: _RemotePath) -> FileInfo:
    info = FileInfo.from_json(body)
    if info.sha256 != digest:
        raise StreamInterrupted(
            f"{path}: what was stored is not what was sent (sha256 {info.sha256} instead of {digest})",
            hint="write it again",
        )
    return info
