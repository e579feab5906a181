"""The files given at create, laid out on the host for the read-only mount under /inputs."""

from __future__ import annotations

import asyncio
import base64
import errno
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bellglass.ballast import disk_full
from bellglass.errors import InvalidRequest, TooLarge
from bellglass.model import MAX_INPUTS_BYTES

MAX_INPUT_FILES = 4096
MAX_NAME_BYTES = 1024


def read(inputs: Mapping[str, Any]) -> dict[str, bytes]:
    """Checked names and their bytes. Raises InvalidRequest naming the file, TooLarge over MAX_INPUTS_BYTES."""
    if len(inputs) > MAX_INPUT_FILES:
        raise TooLarge(f"inputs: {len(inputs)} files, the most is {MAX_INPUT_FILES}", details={"field": "inputs"})
    files = {name: _content(name, value) for name, value in inputs.items()}
    size = sum(map(len, files.values()))
    if size > MAX_INPUTS_BYTES:
        raise TooLarge(
            f"inputs: {size} bytes, the most is {MAX_INPUTS_BYTES}",
            hint="upload larger files once the sandbox runs",
            details={"field": "inputs"},
        )
    for name in files:
        _check_name(name, files)
    return files


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Folders 0755, files 0444, so that every user of the sandbox can read them. `folder` must not exist yet. Raises
    NoCapacity where the host's disk has no room; then a part of them may be there."""
    try:
        _write(folder, files)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise disk_full() from error


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(mode=0o755, parents=True)
    folder.chmod(0o755)
    for name, data in files.items():
        target = folder / name
        for parent in reversed(target.relative_to(folder).parents[:-1]):
            (folder / parent).mkdir(mode=0o755, exist_ok=True)
            (folder / parent).chmod(0o755)
        target.write_bytes(data)
        target.chmod(0o444)


async def remove(folder: Path) -> None:
    """Safe to repeat."""
    if folder.exists():
        await asyncio.to_thread(shutil.rmtree, folder)


def _refuse(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"inputs: {name[:200]!r} {why}", details={"field": "inputs"})


def _check_name(name: str, all_names: Mapping[str, bytes]) -> None:
    path = PurePosixPath(name)
    if not name or "\0" in name or name.startswith("/") or name.endswith("/") or "//" in name:
        raise _refuse(name, "is not a relative path of a file")
    if any(part in ("..", ".") for part in name.split("/")):
        raise _refuse(name, "must not hold '.' or '..'")
    encoded = name.encode("utf-8", "surrogatepass")
    if len(encoded) > MAX_NAME_BYTES or any(len(part.encode("utf-8", "surrogatepass")) > 255 for part in path.parts):
        raise _refuse(name, "is too long a name")
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise _refuse(name, "is not UTF-8")
    for parent in path.parents:
        if str(parent) in all_names:
            raise _refuse(name, f"lies below {str(parent)!r}, which is a file")


def _content(name: str, value: Any) -> bytes:
    text, b64 = (value.get("text"), value.get("b64")) if isinstance(value, dict) else (None, None)
    if isinstance(text, str) == isinstance(b64, str):
        raise _refuse(name, "needs either text or b64")
    try:
        return text.encode("utf-8") if isinstance(text, str) else base64.b64decode(str(b64), validate=True)
    except ValueError:
        raise _refuse(name, "holds text that is not UTF-8, or b64 that is not base64") from None
