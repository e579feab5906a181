"""Files inside a sandbox."""

from __future__ import annotations

import dataclasses

from bellglass.record import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo(Record):
    """One path inside a sandbox, as its own kernel describes it."""

    path: str
    name: str
    type: str
    """`file dir symlink fifo socket char block`."""
    size: int
    mode: str
    """Octal, four digits: "0644"."""
    uid: int
    gid: int
    user: str
    group: str
    mtime: str
    allocated_bytes: int
    target: str | None = None
    """What a link says, as it stands there."""
    resolved: str | None = None
    """Where a link leads in the end, without any link on the way; null for one that leads nowhere."""
    target_type: str | None = None
    target_mode: str | None = None
    attributes: dict[str, str] = dataclasses.field(default_factory=dict)
    """Extended attributes `user.<name>`, by name; at most 8 KiB of them are told."""
    attributes_cut: bool = False
    """There are more than `attributes` has."""
    sha256: str | None = None
    """Of the bytes that were written; only in the answer to a write."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileEvent(Record):
    """A change in a watched folder."""

    kind: str
    """`create write remove rename chmod overflow`. A rename tells the old name; the new one comes as a create, with the
    same `cookie`, if it lies in what is watched. `overflow`: changes were lost, look at the folder itself."""
    path: str
    """From the watched folder; "." is that folder."""
    dir: bool = False
    cookie: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SignedUrl(Record):
    """A URL that reads or writes one file without a key."""

    url: str
    """At the address by which it was asked for."""
    target: str
    """Path and query of it."""
    expires_at: str
