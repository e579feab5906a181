"""What the guest says of a failed file operation, as an error of ours. The one place where errno becomes a class."""

from __future__ import annotations

import errno
import os

from bellglass.errors import (
    AgentLost,
    ArchiveRefused,
    BellglassError,
    DiskFull,
    FileExists,
    FileMissing,
    FilePermission,
    FileTypeMismatch,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotSupported,
    TooLarge,
)
from bellglass.wire.guest import GuestFailure

_BY_ERRNO: dict[int, type[BellglassError]] = {
    errno.ENOENT: FileMissing,
    errno.EACCES: FilePermission,
    errno.EPERM: FilePermission,
    errno.EROFS: FilePermission,
    errno.ETXTBSY: FilePermission,
    errno.EEXIST: FileExists,
    errno.ENOTEMPTY: FileExists,
    errno.EISDIR: FileTypeMismatch,
    errno.ENOTDIR: FileTypeMismatch,
    errno.ENXIO: FileTypeMismatch,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.ENAMETOOLONG: InvalidRequest,
    errno.ELOOP: InvalidRequest,
    errno.EINVAL: InvalidRequest,
    errno.EFBIG: TooLarge,
    errno.EBUSY: FilePermission,
}
_HINTS: dict[type[BellglassError], str] = {
    FilePermission: "act as another user (`user=`, or `--user root`), or change the permissions inside",
    DiskFull: "remove files, or create the sandbox with more disk",
    FileExists: "choose another name, or allow overwriting",
    FileTypeMismatch: "only regular files are read and written",
    LimitExceeded: "end some of the sandbox's processes, or create it with more pids or memory",
}


def of_failure(failure: GuestFailure, path: str) -> BellglassError:
    """The typed error of FAILED; its message names the path and what the kernel said."""
    kind = _kind(failure)
    said = clean(failure.message)
    if failure.errno and failure.stage not in ("archive", "limit", "size"):
        said = f"{said}: {os.strerror(failure.errno).lower()}" if said else os.strerror(failure.errno).lower()
    field = "user" if failure.stage == "user" else "path"
    details = {"field": field, "path": shown(path), "errno": errno.errorcode.get(failure.errno)}
    return kind(f"{shown(path)}: {said}", hint=_HINTS.get(kind), details=details)


def _kind(failure: GuestFailure) -> type[BellglassError]:
    match failure.stage:
        case "type":
            return FileExists if failure.errno == errno.EEXIST else FileTypeMismatch
        case "limit":
            return TooLarge if failure.errno else LimitExceeded  # without errno: too many streams at once
        case "archive":
            return ArchiveRefused
        case "size" | "user":
            return InvalidRequest
        case "attributes" if failure.errno == errno.EOPNOTSUPP:
            return NotSupported  # the file system there keeps none
        case "aborted":
            return AgentLost
        case "fork" if failure.errno in (errno.EAGAIN, errno.ENOMEM):
            return LimitExceeded  # the sandbox's own processes or memory are used up
        case "protocol" | "fork":
            return InternalError
        case _:
            return _BY_ERRNO.get(failure.errno, InternalError)


def clean(text: str) -> str:
    """A guest's text as UTF-8: bytes that are none become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def shown(path: str) -> str:
    text = clean(path)
    return text if len(text) <= 200 else text[:200] + "..."
