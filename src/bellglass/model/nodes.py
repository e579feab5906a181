"""What a node can do and what it has installed."""

from __future__ import annotations

import dataclasses

from bellglass.record import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierReport(Record):
    """What a node can do on one tier, and if it can't, why and what would bring it."""

    tier: str
    runtime: str
    version: str | None
    usable: bool
    reason: str | None = None
    hint: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInfo(Record):
    name: str
    digest: str
    env: dict[str, str]
    user: str
    workdir: str
    size_bytes: int
    built_at: str
    aliases: list[str] = dataclasses.field(default_factory=list)
    """Other names, which the operator gave it (server.template_aliases)."""
