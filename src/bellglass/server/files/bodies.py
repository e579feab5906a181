"""Bodies of requests about files."""

from __future__ import annotations

from dataclasses import dataclass

from bellglass.model import Record
from bellglass.server.files.signing import DEFAULT_LIFETIME


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDirectory(Record):
    """As `mkdir -p` unless told otherwise; folders that exist are left as they are."""

    path: str
    parents: bool = True
    permissions: str | None = None
    exist_ok: bool = True
    user: str | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFile(Record):
    source: str
    destination: str
    overwrite: bool = False
    parents: bool = False
    user: str | None = None
    owner: str | None = None
    """Whose the folders that `parents` makes become."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignFile(Record):
    """`operation`: read or write. `expires_in`: seconds or such as "15m", at most 7 days."""

    path: str
    operation: str = "read"
    expires_in: int | float | str = DEFAULT_LIFETIME
    user: str | None = None
