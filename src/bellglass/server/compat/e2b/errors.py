"""Our errors in E2B's shape: `{"code": <HTTP status>, "message": ..., "error_code": ...}`, always as JSON.

`error_code` is the code of our tree. Clients choose their exception by the status, so a few statuses differ from ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from bellglass.errors import BellglassError, InvalidRequest, NotSupported, SandboxGone, ServiceError, TooLarge

NOT_RUNNING = "The sandbox was not found"
PORT_CLOSED = "The sandbox is running but port is not open"
"""Clients choose their exception by these words."""


def status_of(error: BellglassError) -> int:
    """400 for values that are wrong (ours is 422) and 404 for a sandbox that has ended (ours is 410)."""
    if isinstance(error, (InvalidRequest, TooLarge)):
        return 400
    if isinstance(error, SandboxGone):
        return 404
    return error.status if 400 <= error.status <= 599 else 500


def body(status: int, message: str, **more: Any) -> Response:
    shape = {"code": status, "message": message, **more}
    return Response(_dump(shape), status, media_type="application/json")


def answer(error: BellglassError, request_id: str | None = None) -> Response:
    status = status_of(error)
    shape: dict[str, Any] = {"code": status, "message": str(error), "error_code": error.code}
    if request_id is not None:
        shape["request_id"] = request_id
    headers: dict[str, str] = {}
    if isinstance(error, (NotSupported, ServiceError)) and not error.retryable:
        headers["should-retry"] = "false"
    return Response(_dump(shape), status, headers, media_type="application/json")


def not_supported(what: str, hint: str | None = None) -> NotSupported:
    """To be raised for a part of E2B's API that is not here."""
    return NotSupported(f"{what} is not supported by Bellglass's E2B API", hint=hint)


def not_running(sandbox_id: str) -> Response:
    """As E2B's proxy answers for a sandbox that is not there (any more): clients take its death from the text."""
    shape = {"sandboxId": sandbox_id, "message": NOT_RUNNING, "code": 502}
    # Else clients would ask three times more.
    return Response(_dump(shape), 502, {"should-retry": "false"}, media_type="application/json")


def _dump(shape: Mapping[str, Any]) -> bytes:
    # ASCII with escapes: names out of sandboxes may hold lone surrogates.
    return json.dumps(shape, separators=(",", ":"), default=repr).encode("ascii")
