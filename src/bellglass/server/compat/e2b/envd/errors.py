"""Our errors as these clients know them: a code of the Connect protocol, or a status with `{"code", "message"}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from bellglass import errors
from bellglass.errors import BellglassError

STATUSES = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "out_of_range": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "data_loss": 500,
    "unauthenticated": 401,
}
"""Of Connect's codes."""

# The first that fits.
_CODES: tuple[tuple[type[BellglassError], str], ...] = (
    (errors.NotFound, "not_found"),
    (errors.FileExists, "already_exists"),
    (errors.FileTypeMismatch, "invalid_argument"),
    (errors.Conflict, "failed_precondition"),
    (errors.FilePermission, "permission_denied"),
    (errors.Forbidden, "permission_denied"),
    (errors.Unauthorized, "unauthenticated"),
    (errors.InvalidRequest, "invalid_argument"),
    (errors.TooLarge, "resource_exhausted"),
    (errors.LimitExceeded, "resource_exhausted"),
    (errors.DiskFull, "resource_exhausted"),
    (errors.NoCapacity, "resource_exhausted"),
    (errors.NotSupported, "unimplemented"),
    (errors.MethodNotAllowed, "unimplemented"),
    (errors.NodeUnavailable, "unavailable"),
    (errors.AgentLost, "unavailable"),
    (errors.VersionMismatch, "unavailable"),
    (errors.SandboxGone, "unavailable"),
    (errors.RequestError, "invalid_argument"),
)
_FILE_STATUSES: tuple[tuple[type[BellglassError], int], ...] = (
    (errors.FileTypeMismatch, 400),
    (errors.InvalidRequest, 400),
    (errors.FileExists, 400),
)
"""Of /files, where they differ from our own."""


class ConnectError(Exception):
    """An error that has a code of Connect's by itself."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def connect_error(error: BellglassError, user: str | None) -> ConnectError:
    """`user`: who was to act, as the client named it."""
    if is_of_user(error):
        return ConnectError("unauthenticated", f"invalid username: {user!r}")
    for kind, code in _CODES:
        if isinstance(error, kind):
            return ConnectError(code, str(error))
    return ConnectError("internal", str(error))


def unary_error(error: ConnectError) -> Response:
    return json_answer({"code": error.code, "message": error.message}, STATUSES[error.code])


def is_of_user(error: BellglassError) -> bool:
    return isinstance(error, errors.InvalidRequest) and error.details.get("field") in ("user", "owner")


def file_error(error: BellglassError, user: str | None) -> Response:
    """The answer of /files."""
    if is_of_user(error):
        return plain_error(401, f"invalid username: {user!r}")
    for kind, status in _FILE_STATUSES:
        if isinstance(error, kind):
            return plain_error(status, str(error))
    return plain_error(error.status, str(error))


def plain_error(status: int, message: str) -> Response:
    return json_answer({"code": status, "message": message}, status)


def json_answer(
    value: Mapping[str, Any] | list[Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(dump(value), status, headers, media_type="application/json")


def dump(value: Mapping[str, Any] | list[Any]) -> bytes:
    # ASCII with escapes: names out of a sandbox may hold lone surrogates.
    return json.dumps(value, separators=(",", ":")).encode("ascii")
