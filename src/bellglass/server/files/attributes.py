"""Attributes of files (extended attributes `user.<name>`) as they come in: a JSON object of texts in a header."""

from __future__ import annotations

from collections.abc import Mapping

from bellglass.errors import InvalidRequest
from bellglass.server.http.validation import shown
from bellglass.wire import untrusted

HEADER = "x-bellglass-attributes"
MAX_NAME_BYTES = 250
MAX_BYTES = 8192


def parse(header: str | None) -> dict[str, str] | None:
    """None without a header. Raises InvalidRequest."""
    if header is None:
        return None
    try:
        value = untrusted.parse(header)
    except ValueError:
        raise _refuse(header, "is not JSON") from None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _refuse(value, "is not an object of texts")
    return value


def check(attributes: Mapping[str, str] | None) -> None:
    """Raises InvalidRequest for a name or a set that no file can have."""
    size = 0
    for name, value in (attributes or {}).items():
        try:
            name_bytes, value_bytes = len(name.encode()), len(value.encode())
        except UnicodeEncodeError:
            raise _refuse(name, "holds characters that are not text") from None
        if not name or "\0" in name or name_bytes > MAX_NAME_BYTES:
            raise _refuse(name, f"is not a name of 1 to {MAX_NAME_BYTES} bytes without NUL")
        size += name_bytes + value_bytes
    if size > MAX_BYTES:
        raise InvalidRequest(
            f"attributes: they are {size} bytes together",
            hint=f"at most {MAX_BYTES} with their names, and most file systems keep less than 4096",
            details={"field": "attributes"},
        )


def _refuse(value: object, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"attributes: {shown(value)} {why}", hint='such as {"origin": "upload"}', details={"field": "attributes"}
    )
