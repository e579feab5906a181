"""Stat records of the guest as FileInfo, under absolute paths."""

from __future__ import annotations

import posixpath
from datetime import UTC, datetime
from typing import Any

from bellglass.model import format_time
from bellglass.node.files.errors import clean
from bellglass.wire.guest import Stat

_TYPES = {"f": "file", "d": "dir", "l": "symlink", "p": "fifo", "s": "socket", "c": "char", "b": "block"}
_LAST_SECOND = 253402300799  # the end of year 9999: what RFC 3339 can say


def absolute(base: str, path: str) -> str:
    """`path` from `base`, as text: `..` and links stay, only the guest's kernel knows where they lead."""
    parts = [part for part in posixpath.join(base, path).split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def render(stat: Stat, path: str, *, sha256: str | None = None) -> dict[str, Any]:
    """FileInfo as JSON. Names that are not UTF-8 are shown with replacement characters."""
    shown = clean(path)
    return {
        "path": shown,
        "name": posixpath.basename(shown.rstrip("/")) or "/",
        "type": _TYPES[stat.type],
        "size": stat.size,
        "mode": f"{stat.mode:04o}",
        "uid": stat.uid,
        "gid": stat.gid,
        "user": clean(stat.user) or str(stat.uid),
        "group": clean(stat.group) or str(stat.gid),
        "mtime": _time(stat.mtime_ns),
        "allocated_bytes": stat.allocated_bytes,
        "target": None if stat.target is None else clean(stat.target),
        "resolved": None if stat.resolved is None else clean(stat.resolved),
        "target_type": None if stat.target_type is None else _TYPES[stat.target_type],
        "target_mode": None if stat.target_mode is None else f"{stat.target_mode:04o}",
        "attributes": {clean(name): clean(value) for name, value in stat.attributes.items()},
        "attributes_cut": stat.attributes_cut,
        "sha256": sha256,
    }


def _time(nanoseconds: int) -> str:
    """A guest sets its times as it likes: beyond what RFC 3339 can say they are cut to its ends."""
    seconds, rest = divmod(nanoseconds, 10**9)
    seconds = min(max(seconds, -62135596800), _LAST_SECOND)
    moment = datetime.fromtimestamp(0, UTC).timestamp() + seconds
    return format_time(datetime.fromtimestamp(moment, UTC).replace(microsecond=rest // 1000))
