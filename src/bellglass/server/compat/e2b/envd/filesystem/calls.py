"""The methods of filesystem.Filesystem but for watching."""

from __future__ import annotations

from typing import Any

from bellglass.errors import FileExists, FileMissing, FileTypeMismatch
from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.errors import ConnectError
from bellglass.server.compat.e2b.envd.files.paths import acting, checked
from bellglass.server.compat.e2b.envd.filesystem.entries import entry
from bellglass.server.compat.e2b.envd.messages import Message
from bellglass.server.files.service import MAX_ENTRIES


async def stat(call: Call, message: Message) -> dict[str, Any]:
    call.acts("file.stat", audited=False)
    path = checked(message.text("path"))
    return {"entry": entry(await stat_path(call, path))}


async def list_dir(call: Call, message: Message) -> dict[str, Any]:
    """A folder's entries, those of a folder behind it, by name; a link is not followed."""
    call.acts("file.list", audited=False)
    path = checked(message.text("path"))
    depth = message.number("depth") or 1
    try:
        found = await _call(call, "file.list", path=path, depth=depth, limit=MAX_ENTRIES)
    except FileTypeMismatch:
        raise ConnectError("invalid_argument", f"path is not a directory: {path}") from None
    except FileMissing:
        raise _missing(path) from None
    if found["truncated"]:
        raise ConnectError(
            "resource_exhausted", f"{path}: more than {MAX_ENTRIES} entries: list its folders one by one"
        )
    return {"entries": [entry(info) for info in found["entries"]]}


async def make_dir(call: Call, message: Message) -> dict[str, Any]:
    """With the folders above it."""
    call.acts("file.mkdir")
    path = checked(message.text("path"))
    try:
        made = await _call(call, "file.mkdir", path=path, parents=True, exist_ok=False, mode_bits=0o755)
    except (FileExists, FileTypeMismatch) as error:
        if isinstance(error, FileTypeMismatch) or (await stat_path(call, path))["type"] not in ("dir", "symlink"):
            raise ConnectError("invalid_argument", f"path already exists but it is not a directory: {path}") from None
        raise ConnectError("already_exists", f"directory already exists: {path}") from None
    return {"entry": entry(made["info"])}


async def move(call: Call, message: Message) -> dict[str, Any]:
    call.acts("file.move")
    source, destination = checked(message.text("source"), "source"), checked(message.text("destination"), "destination")
    try:
        await _call(call, "file.move", source=source, destination=destination, overwrite=True, parents=True)
    except FileMissing:
        raise _missing(source) from None
    return {"entry": entry(await stat_path(call, destination))}


async def remove(call: Call, message: Message) -> dict[str, Any]:
    """With all that is below it; what is not there is removed already."""
    call.acts("file.remove")
    await _call(call, "file.remove", path=checked(message.text("path")), recursive=True, missing_ok=True)
    return {}


async def stat_path(call: Call, path: str) -> dict[str, Any]:
    """The FileInfo of what is there, itself and not what it leads to. Raises ConnectError."""
    try:
        found: dict[str, Any] = (await _call(call, "file.stat", path=path, follow=False))["info"]
    except FileMissing:
        raise _missing(path) from None
    return found


async def _call(call: Call, op: str, **params: Any) -> dict[str, Any]:
    return await call.services.files.call(
        call.project_id, call.sandbox_id, op, {**acting(call), **params}, call.request_id
    )


def _missing(path: str) -> ConnectError:
    return ConnectError("not_found", f"path not found: {path}")
