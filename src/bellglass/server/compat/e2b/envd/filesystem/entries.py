"""A FileInfo of ours as their EntryInfo."""

from __future__ import annotations

import stat
from typing import Any

from bellglass.server.compat.e2b.envd.files.metadata import metadata_of

_TYPES = {"file": "FILE_TYPE_FILE", "dir": "FILE_TYPE_DIRECTORY"}
_LETTERS = {"dir": "d", "symlink": "L", "fifo": "p", "socket": "S", "char": "Dc", "block": "D"}
"""As Go writes the kinds of files."""


def entry(info: dict[str, Any]) -> dict[str, Any]:
    """A link has its target's type and mode, where it has one. Without their names fields have their defaults."""
    kind, mode = info["type"], int(info["mode"], 8)
    found: dict[str, Any] = {
        "name": info["name"],
        "path": info["path"],
        "size": str(info["size"]),
        "mode": mode & 0o777,
        "permissions": _permissions(kind, mode),
        "owner": info["user"],
        "group": info["group"],
        "modifiedTime": info["mtime"],
    }
    if kind == "symlink":
        kind = info.get("target_type")
        found["symlinkTarget"] = info.get("resolved") or info.get("target") or ""
        if info.get("target_mode"):
            found["mode"] = int(info["target_mode"], 8) & 0o777
    if kind in _TYPES:
        found["type"] = _TYPES[kind]
    if metadata := metadata_of(info):
        found["metadata"] = metadata
    return found


def _permissions(kind: str, mode: int) -> str:
    letters = _LETTERS.get(kind, "")
    for bit, letter in ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"), (stat.S_ISVTX, "t")):
        if mode & bit:
            letters += letter
    shown = "".join(letter if mode & (0o400 >> place) else "-" for place, letter in enumerate("rwxrwxrwx"))
    return (letters or "-") + shown
