"""Projects, what they may have at once, and their keys."""

from __future__ import annotations

import dataclasses

from bellglass.record import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Project(Record):
    id: str
    name: str
    created_at: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Record):
    """`used` of at most `most`; `own` is false where the project has the installation's default."""

    most: int
    used: int
    own: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLimits(Record):
    """What a project may have at once. Sandboxes count from the start of their create until all is dead."""

    project_id: str
    project_name: str
    sandboxes: Limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(Record):
    """`secret` is there once, in the answer to the create."""

    id: str
    project_id: str
    project_name: str
    label: str | None
    created_at: str
    last_used_at: str | None
    revoked_at: str | None
    secret: str | None = None
