"""Every error that Bellglass shows to a caller, as one tree with one JSON shape.

    BellglassError
    +-- RequestError                         the caller can mend it
    |   +-- InvalidRequest        422 invalid_request      a value is wrong; details.field names it
    |   |   +-- InvalidCommand    422 invalid_command      empty, NUL, bad cwd, bad user of an execution
    |   +-- Unauthorized          401 unauthorized         no key, or a wrong one
    |   +-- Forbidden             403 forbidden            the key may not do that
    |   +-- NotFound              404 not_found            unknown, malformed or another project's id
    |   |   +-- FileMissing       404 file_not_found       a path inside a sandbox
    |   +-- MethodNotAllowed      405 method_not_allowed
    |   +-- NotAcceptable         406 not_acceptable       no output format that both sides speak
    |   +-- Conflict              409 conflict             it exists, or it is in another state
    |   |   +-- IdempotencyConflict 409 idempotency_conflict  same key, other body
    |   |   +-- FileExists        409 file_exists
    |   |   +-- FileTypeMismatch  409 file_type            a folder, FIFO, device or socket where a file is needed
    |   +-- FilePermission        403 file_permission      the sandbox's kernel said EACCES or EPERM
    |   +-- SandboxGone           410 sandbox_gone         ended; details.reason and details.ended_at
    |   +-- TooLarge              413 too_large            a body, file or archive over its limit
    |   +-- RangeNotSatisfiable   416 range_not_satisfiable  the file has no byte of the range; details.size
    |   +-- ArchiveRefused        422 archive_refused      a tar entry that leads outside, or no tar at all
    |   +-- LimitExceeded         429 limit_exceeded       a limit of the project
    |   +-- DiskFull              507 disk_full            the sandbox's own disk or inode table is full
    +-- NotSupported              501 not_supported        not on this tier or not in this version
    +-- ServiceError                         ours; a retry can help where it says so
    |   +-- InternalError         500 internal
    |   +-- NoCapacity            503 no_capacity          details.resource names what is missing
    |   +-- NodeUnavailable       503 node_unavailable     the node does not answer
    |   +-- AgentLost             503 agent_lost           the sandbox's agent does not answer; outcome unknown
    |   +-- KernelDied            502 kernel_died          of a context; state lost, the next run works
    |   +-- PortUnreachable       502 port_unreachable     details.reason: refused, reset, timeout or failed
    |   +-- SandboxFailed         500 sandbox_failed       it could not be started
    |   +-- VersionMismatch       503 version_mismatch     two parts of different releases; details has both protocols
    +-- ClientError                          raised by the SDK alone, never sent
        +-- ConnectionFailed      no server at that address, or the connection broke
        +-- ExecutionFailed       exec(check=True) of a command that did not succeed
        +-- OutputInvalid         result.json() could not read the output
        +-- StreamInterrupted     the outcome is unknown; attach again by the id

`from_dict` turns the JSON shape back into the class; an unknown code becomes the nearest class by status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class BellglassError(Exception):
    """Root of the tree. `message` names the value and what was wrong, `hint` the next step."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = dict(details or {})
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The one shape: `{"error": {code, message, hint, retryable, details, request_id}}`."""
        return {
            "error": {
                "code": self.code,
                "message": self.message,
                "hint": self.hint,
                "retryable": self.retryable,
                "details": self.details,
                "request_id": self.request_id,
            }
        }


class RequestError(BellglassError):
    code, status = "bad_request", 400


class InvalidRequest(RequestError):
    code, status = "invalid_request", 422


class InvalidCommand(InvalidRequest):
    code = "invalid_command"


class Unauthorized(RequestError):
    code, status = "unauthorized", 401


class Forbidden(RequestError):
    code, status = "forbidden", 403


class NotFound(RequestError):
    code, status = "not_found", 404


class FileMissing(NotFound):
    code = "file_not_found"


class MethodNotAllowed(RequestError):
    code, status = "method_not_allowed", 405


class NotAcceptable(RequestError):
    code, status = "not_acceptable", 406


class Conflict(RequestError):
    code, status = "conflict", 409


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"


class FileExists(Conflict):
    code = "file_exists"


class FileTypeMismatch(Conflict):
    code = "file_type"


class FilePermission(RequestError):
    code, status = "file_permission", 403


class SandboxGone(RequestError):
    """`details`: `sandbox_id`, `reason` (a termination reason), `ended_at` (RFC 3339)."""

    code, status = "sandbox_gone", 410


class TooLarge(RequestError):
    code, status = "too_large", 413


class RangeNotSatisfiable(RequestError):
    """`details.size`: how many bytes the file has."""

    code, status = "range_not_satisfiable", 416


class ArchiveRefused(RequestError):
    code, status = "archive_refused", 422


class LimitExceeded(RequestError):
    code, status, retryable = "limit_exceeded", 429, True


class DiskFull(RequestError):
    code, status = "disk_full", 507


class NotSupported(BellglassError):
    code, status = "not_supported", 501


class ServiceError(BellglassError):
    code, status = "internal", 500


class InternalError(ServiceError):
    code = "internal"


class NoCapacity(ServiceError):
    """`details.resource` is one of `cpu memory disk pids uids`; where it is a sum, `asked` and `free` are told in CPUs,
    bytes or processes."""

    code, status, retryable = "no_capacity", 503, True


class NodeUnavailable(ServiceError):
    code, status, retryable = "node_unavailable", 503, True


class AgentLost(ServiceError):
    code, status, retryable = "agent_lost", 503, True


class PortUnreachable(ServiceError):
    """`details`: `port` of the sandbox, `reason`: `refused` (nothing listens), `reset`, `timeout` or `failed`."""

    code, status, retryable = "port_unreachable", 502, True


class KernelDied(ServiceError):
    """`details`: `context_id`, `run_id` of the run that it ended (None: it was being started), `reason` (`exited`,
    `signal`, `oom`, `unresponsive`, `protocol`, `restarted` or `deleted`), `signal` and `code` where there are, and
    `state_lost`, which is true."""

    code, status = "kernel_died", 502
    result: Any = None
    """Of the SDK: what the run gave until then."""


class SandboxFailed(ServiceError):
    code, status = "sandbox_failed", 500


class VersionMismatch(ServiceError):
    """Two parts that share no protocol version. `details`: `ours` and `theirs`, each `[oldest, newest]`."""

    code, status = "version_mismatch", 503


class ClientError(BellglassError):
    code, status = "client", 0


class ConnectionFailed(ClientError):
    code, retryable = "connection_failed", True


class ExecutionFailed(ClientError):
    """`result` is the whole result of the execution."""

    code = "execution_failed"

    def __init__(self, message: str, *, result: Any = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.result = result


class OutputInvalid(ClientError):
    code = "output_invalid"


class StreamInterrupted(ClientError):
    code, retryable = "stream_interrupted", True


def _tree(root: type[BellglassError]) -> dict[str, type[BellglassError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        for code, cls in _tree(child).items():
            found.setdefault(code, cls)
    return found


BY_CODE: dict[str, type[BellglassError]] = _tree(BellglassError) | {"internal": InternalError}
_BY_STATUS: dict[int, type[BellglassError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    410: SandboxGone,
    413: TooLarge,
    416: RangeNotSatisfiable,
    422: InvalidRequest,
    429: LimitExceeded,
    501: NotSupported,
    503: NodeUnavailable,
}


def _rebuild(cls: type[BellglassError], shape: Mapping[str, Any]) -> BellglassError:
    body = shape["error"]
    return cls(body["message"], hint=body["hint"], details=body["details"], request_id=body["request_id"])


def from_dict(shape: Any, *, status: int = 500) -> BellglassError:
    """The exception for an error body. Lenient: a body in another shape still gives an error with its status."""
    body = shape.get("error") if isinstance(shape, Mapping) else None
    if not isinstance(body, Mapping):
        body = {"message": f"the answer had status {status} and no error body"}
    code = str(body.get("code", ""))
    cls = BY_CODE.get(code) or _BY_STATUS.get(status) or (RequestError if 400 <= status < 500 else ServiceError)
    details = body.get("details")
    return cls(
        str(body.get("message", f"status {status}")),
        hint=body.get("hint"),
        details=details if isinstance(details, Mapping) else None,
        request_id=body.get("request_id"),
    )
