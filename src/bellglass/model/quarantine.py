"""Sandboxes that the database does not know."""

from __future__ import annotations

import dataclasses

from bellglass.record import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(Record):
    """A sandbox of the node that the database does not know. It stands still, and is removed at `removed_at`."""

    id: str
    project_id: str
    project_name: str | None
    """None: that project is unknown too."""
    state: str
    """`running`: its processes stand still; `ended`: its disk is all that is left."""
    template: str
    name: str | None
    owner: str | None
    disk_bytes: int
    quarantined_at: str
    removed_at: str
