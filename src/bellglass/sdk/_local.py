"""The local side of a transfer: sources with a size, files that appear as a whole, progress, the forms of arguments."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import IO, Any, Self

from bellglass.errors import InvalidRequest
from bellglass.model import FileInfo
from bellglass.sdk._options import invalid

CHUNK = 1024 * 1024
TAR = "application/x-tar"
INFO_HEADER = "x-bellglass-file-info"
Progress = Callable[[int, int | None], Any]
"""Called with the bytes that are done and those there are in all (None: not known)."""


class Copied:
    """Counts bytes and tells."""

    def __init__(self, total: int | None, on_progress: Progress | None) -> None:
        self.done = 0
        self._total = total
        self._on_progress = on_progress

    def add(self, count: int) -> None:
        self.done += count
        if self._on_progress is not None:
            self._on_progress(self.done, self._total)


class Sized:
    """A source of bytes: a path (opened and closed here), an open binary file, or an iterator.

    Of a file exactly the size that it had at the start is sent; one that got shorter is an error."""

    def __init__(self, source: Any) -> None:
        self._stack = ExitStack()
        self._source = source
        self._file: IO[bytes] | None = None
        self.size: int | None = None
        self.permissions: int | None = None

    def __enter__(self) -> Self:
        source = self._source
        if isinstance(source, (bytes, bytearray)):
            raise TypeError("upload() takes a path, a file or an iterator; write_bytes() takes bytes")
        if isinstance(source, (str, PurePath)):
            # Not blocking: opening a FIFO would wait for a writer.
            descriptor = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                os.close(descriptor)
                raise InvalidRequest(f"{source} is not a file", hint="regular files go, and folders by upload_dir()")
            file = self._stack.enter_context(os.fdopen(descriptor, "rb", buffering=0))
            self._file, self.size, self.permissions = file, status.st_size, stat.S_IMODE(status.st_mode) & 0o777
        elif hasattr(source, "read"):
            self._file = source
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[bytes]:
        if self._file is None:
            yield from self._source
            return
        left = self.size
        while left is None or left > 0:
            chunk = self._file.read(CHUNK if left is None else min(CHUNK, left))
            if not chunk:
                if left is None:
                    return
                raise InvalidRequest(f"{self._source} became {left} bytes shorter while it was sent")
            if left is not None:
                left -= len(chunk)
            yield chunk


class PartialFile:
    """Writes beside `place` and moves it there with `keep`; without that nothing is left."""

    def __init__(self, place: Path, mode: str | None) -> None:
        self._place = place
        self._mode = mode
        self._kept = False

    def __enter__(self) -> Self:
        folder = self._place.parent
        try:
            descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{self._place.name[:64]}.")
        except OSError as error:  # of the folder: the passing name says nothing to anyone
            raise OSError(error.errno, error.strerror, str(folder)) from error
        self._temporary = Path(name)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        return self

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def keep(self) -> None:
        self._file.close()
        self._temporary.chmod(_safe_mode(self._mode))
        self._temporary.replace(self._place)
        self._kept = True

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._kept:
            self._temporary.unlink(missing_ok=True)


def _safe_mode(mode: str | None) -> int:
    """Read, write and execute bits as far as the umask allows them: no set-uid bit comes out of a sandbox."""
    try:
        wanted = int(mode, 8) if mode else 0o666
    except ValueError:
        wanted = 0o666
    umask = os.umask(0o077)
    os.umask(umask)
    return (wanted & 0o777 & ~umask) | stat.S_IRUSR | stat.S_IWUSR


def spool() -> IO[bytes]:
    """A nameless file on disk for what does not go into memory."""
    return tempfile.TemporaryFile(prefix="bellglass-")


def text_path(path: str | PurePath) -> str:
    """A path inside a sandbox as the request has it. Raises InvalidRequest for none, and for a NUL."""
    text = path.as_posix() if isinstance(path, PurePath) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise invalid("path", path, "is not a path")
    return text


def octal(permissions: int | str | None) -> str | None:
    """`0o640` or "0640" as "0640"."""
    if permissions is None:
        return None
    try:
        value = int(permissions, 8) if isinstance(permissions, str) else int(permissions)
    except ValueError:
        value = -1
    if isinstance(permissions, (bool, float)) or not 0 <= value <= 0o7777:
        raise invalid("permissions", permissions, "are not octal permissions", 'such as 0o640 or "0640"')
    return f"{value:04o}"


def write_query(
    path: str | PurePath,
    permissions: int | str | None,
    parents: bool,
    exclusive: bool,
    in_place: bool,
    offset: int | None,
    truncate: bool | None,
    user: str | None,
    owner: str | None,
) -> dict[str, Any]:
    if offset is not None and not in_place:
        raise invalid("offset", offset, "is for in_place=True only")
    return {
        "path": text_path(path),
        "mode": "in_place" if in_place else None,
        "offset": offset,
        "truncate": truncate,
        "parents": parents,
        "permissions": octal(permissions),
        "exclusive": exclusive or None,
        "user": user,
        "owner": owner,
    }


def attributes_header(attributes: Mapping[str, str] | None) -> dict[str, str]:
    return {} if attributes is None else {"x-bellglass-attributes": json.dumps(dict(attributes))}


def range_header(offset: int, length: int | None) -> dict[str, str]:
    if offset < 0 or (length is not None and length < 0):
        raise invalid("offset" if offset < 0 else "length", offset if offset < 0 else length, "is negative")
    if offset == 0 and length is None:
        return {}
    return {"range": f"bytes={offset}-{'' if length is None else offset + length - 1}"}


def file_info(headers: Mapping[str, str]) -> FileInfo | None:
    """What the server says about a file whose content it sends."""
    raw = headers.get(INFO_HEADER)
    return FileInfo.from_json(json.loads(raw)) if raw else None
