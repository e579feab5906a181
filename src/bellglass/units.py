"""Sizes and times as people write them: 4096, "512MiB", "1.5GiB"; 90, "15m", "2h".

Both parsers raise InvalidRequest with the field's name and the value. NaN, infinities, booleans, negative
and zero values are refused; so is anything beyond what a sandbox can sensibly have.
"""

from __future__ import annotations

import math
import re

from bellglass.errors import InvalidRequest

_SIZE = re.compile(r"^\s*(\d{1,15}(?:\.\d{1,9})?)\s*(B|KB|MB|GB|TB|K|M|G|T|KiB|MiB|GiB|TiB)?\s*$", re.IGNORECASE)
_TIME = re.compile(r"^\s*(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)?\s*$", re.IGNORECASE)
_SIZE_FACTOR = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_TIME_FACTOR = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MAX_SIZE_BYTES = 2**50
MAX_TIME_S = 10 * 365 * 86400.0


def _refuse(field: str, value: object, why: str, hint: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {value!r} {why}", hint=hint, details={"field": field})


def parse_size(value: object, field: str = "size") -> int:
    """Bytes of a size: a positive whole number, or a string with a unit ("512MiB", "4GB", "1.5GiB")."""
    hint = 'use bytes or a string such as "512MiB"'
    if isinstance(value, str) and (match := _SIZE.match(value)):
        number = float(match[1]) * _SIZE_FACTOR[(match[2] or "").lower()]
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        number = value
    else:
        raise _refuse(field, value, "is not a size", hint)
    if number != int(number):
        raise _refuse(field, value, "is not a whole number of bytes", hint)
    if number <= 0:
        raise _refuse(field, value, "must be greater than zero", hint)
    if number > MAX_SIZE_BYTES:
        raise _refuse(field, value, "is too large", "the most is 1 PiB")
    return int(number)


def parse_duration(value: object, field: str = "duration") -> float:
    """Seconds of a time: a positive number, or a string with a unit ("90s", "15m", "2h", "1d")."""
    hint = 'use seconds or a string such as "15m"'
    if isinstance(value, str) and (match := _TIME.match(value)):
        seconds = float(match[1]) * _TIME_FACTOR[(match[2] or "").lower()]
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value):
        seconds = float(value)
    else:
        raise _refuse(field, value, "is not a time", hint)
    if seconds <= 0:
        raise _refuse(field, value, "must be greater than zero", hint)
    if seconds > MAX_TIME_S:
        raise _refuse(field, value, "is too long", "the most is ten years")
    return seconds


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def format_size(size_bytes: int) -> str:
    """`536870912` as `512 MiB`; for people, not for parsing back."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if size == int(size) or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
