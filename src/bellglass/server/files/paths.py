"""Paths and permissions as they come in. A path is the sandbox's own business: here it is only kept in bounds."""

from __future__ import annotations

import re

from bellglass.errors import InvalidRequest
from bellglass.server.http.validation import shown
from bellglass.server.sandboxes.validate import MAX_PATH_BYTES

_OCTAL = re.compile(r"0?[0-7]{3,4}")


def check_path(path: str, field: str = "path") -> str:
    """Not empty, no NUL, at most 4096 bytes of UTF-8. Relative ones start at the sandbox's workdir."""
    if not path:
        raise InvalidRequest(f"{field}: is empty", hint="absolute, or from the workdir", details={"field": field})
    if "\0" in path:
        raise InvalidRequest(f"{field}: {shown(path)} holds a NUL byte", details={"field": field})
    size = len(path.encode("utf-8", "surrogatepass"))
    if size > MAX_PATH_BYTES:
        raise InvalidRequest(
            f"{field}: {shown(path)} is {size} bytes long",
            hint=f"at most {MAX_PATH_BYTES}",
            details={"field": field},
        )
    return path


def mode_bits(permissions: str | None) -> int | None:
    """`0o644` for "0644" or "644"; None without."""
    if permissions is None:
        return None
    if not _OCTAL.fullmatch(permissions) or int(permissions, 8) > 0o7777:
        raise InvalidRequest(
            f"permissions: {shown(permissions)} are not octal",
            hint='such as "0644"',
            details={"field": "permissions"},
        )
    return int(permissions, 8)
