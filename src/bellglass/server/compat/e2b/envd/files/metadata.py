"""Metadata of files: headers of an upload, kept as extended attributes `user.e2b.<key>`."""

from __future__ import annotations

import re
from typing import Any

from starlette.datastructures import Headers

from bellglass.errors import InvalidRequest
from bellglass.server.http.validation import shown

PREFIX = "x-metadata-"
ATTRIBUTES = "e2b."
MAX_KEY_BYTES = 246
MAX_BYTES = 4096
_VALUE = re.compile(r"[\x20-\x7e]*")


def of_headers(headers: Headers) -> dict[str, str]:
    """The attributes that an upload asks for. Raises InvalidRequest."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX)
        if not key or len(key) > MAX_KEY_BYTES:
            raise _wrong(f"{shown(name)} has no key of 1 to {MAX_KEY_BYTES} bytes")
        if not _VALUE.fullmatch(value):
            raise _wrong(f"the value of {shown(name)} is not printable ASCII")
        found[ATTRIBUTES + key] = value
    size = sum(len(name) - len(ATTRIBUTES) + len(value) for name, value in found.items())
    if size > MAX_BYTES:
        raise _wrong(f"{size} bytes, the most are {MAX_BYTES}")
    return found


def metadata_of(info: dict[str, Any]) -> dict[str, str]:
    """Of a FileInfo, whoever set it."""
    attributes = info.get("attributes") or {}
    return {name.removeprefix(ATTRIBUTES): value for name, value in attributes.items() if name.startswith(ATTRIBUTES)}


def _wrong(why: str) -> InvalidRequest:
    return InvalidRequest(f"metadata: {why}", details={"field": "metadata"})
