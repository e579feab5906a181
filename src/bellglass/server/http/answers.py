"""Answers: records and plain dicts as JSON.

ASCII with escapes, since names of files come out of sandboxes as they are and may hold lone surrogates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from bellglass.model import Record


def answer(value: Record | Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    plain = value.to_json() if isinstance(value, Record) else value
    body = json.dumps(plain, separators=(",", ":"), allow_nan=False).encode("ascii")
    return Response(body, status, headers, media_type="application/json")


def array(items: Sequence[Mapping[str, Any]], headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(items, separators=(",", ":"), allow_nan=False).encode("ascii")
    return Response(body, 200, headers, media_type="application/json")


def page(items: list[Any], cursor: str | None) -> Response:
    """`{"items": [...], "cursor": str | null}`."""
    plain = [item.to_json() if isinstance(item, Record) else item for item in items]
    return answer({"items": plain, "cursor": cursor})


def no_content() -> Response:
    return Response(status_code=204)
