"""The Range header: one range of bytes. What is no such range is ignored, as HTTP wants it; several are refused."""

from __future__ import annotations

import re
from typing import NamedTuple

from bellglass.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})", re.IGNORECASE)


class Range(NamedTuple):
    """`first` None: the last `last` bytes. `last` None: to the end."""

    first: int | None
    last: int | None


class Span(NamedTuple):
    offset: int
    length: int


def parse(header: str | None) -> Range | None:
    """None without a header, or with one that isn't a single range of bytes (then all of the file is the answer)."""
    match = _RANGE.fullmatch(header.strip()) if header is not None else None
    if match is None or not (match[1] or match[2]):
        return None
    first = int(match[1]) if match[1] else None
    last = int(match[2]) if match[2] else None
    if first is not None and last is not None and last < first:
        return None
    return Range(first, last)


def resolve(wanted: Range, size: int) -> Span:
    """The part of a file of `size` bytes. Raises RangeNotSatisfiable."""
    if wanted.first is None:
        length = min(wanted.last or 0, size)
        offset = size - length
    else:
        offset = wanted.first
        length = size - offset if wanted.last is None else min(wanted.last + 1, size) - offset
    if length <= 0:
        raise RangeNotSatisfiable(
            f"Range: the file has {size} bytes", hint="ask for bytes that it has", details={"size": size}
        )
    return Span(offset, length)
