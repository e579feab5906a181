"""Reading the parameters of an operation: lenient about what a newer server adds, typed about what is used.

A wrong value raises InvalidRequest naming the field: it is a peer's fault, and must not become a half-made thing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bellglass.errors import InvalidRequest

_MISSING: Any = object()


class Params:
    """The `params` of a call. Every reader takes the default when the field is absent or null."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def raw(self, name: str, default: Any = _MISSING) -> Any:
        value = self._values.get(name)
        if value is None:
            if default is _MISSING:
                raise InvalidRequest(f"{name} is missing", details={"field": name})
            return default
        return value

    def text(self, name: str, default: Any = _MISSING, *, limit: int = 4096) -> Any:
        """A string without NUL, at most `limit` characters. Lone surrogates stand for a guest's raw bytes."""
        value = self.raw(name, default)
        if value is default:
            return value
        if not isinstance(value, str) or "\0" in value or len(value) > limit:
            raise _refuse(name, value, f"is not text without NUL of at most {limit} characters")
        check_encodable(value, name)
        return value

    def integer(self, name: str, default: Any = _MISSING, *, least: int = 0, most: int = 2**63 - 1) -> Any:
        value = self.raw(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _refuse(name, value, f"is not a whole number from {least} to {most}")
        return value

    def seconds(self, name: str, default: Any = _MISSING) -> Any:
        value = self.raw(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise _refuse(name, value, "is not a time above 0 in seconds")
        return float(value)

    def positive(self, name: str) -> float:
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise _refuse(name, value, "is not a number above 0")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise _refuse(name, value, "is not true or false")
        return value

    def mapping(self, name: str, default: Any = _MISSING) -> Any:
        value = self.raw(name, default)
        if value is default:
            return value
        if not isinstance(value, dict):
            raise _refuse(name, value, "is not an object")
        return value


def _refuse(name: str, value: object, why: str) -> InvalidRequest:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:80] + "..."
    return InvalidRequest(f"{name}: {shown} {why}", details={"field": name})


def check_encodable(value: str, name: str) -> None:
    """Raises InvalidRequest for surrogates that stand for no byte."""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _refuse(name, value, "holds characters that are not text") from None
