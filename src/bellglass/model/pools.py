"""Warm pools."""

from __future__ import annotations

import dataclasses

from bellglass.model.values import DEFAULT_CPUS, DEFAULT_DISK, DEFAULT_MEMORY, DEFAULT_PIDS
from bellglass.record import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PutPool(Record):
    """The body of a pool's PUT: how many machines are to be ready, and their shape, with the defaults of a create."""

    size: int
    ceiling: int | None = None
    """No machine is made while so many of the pool exist, sandboxes that were claimed from it counted. None: no bound
    but the node's capacity."""
    cpus: float = DEFAULT_CPUS
    memory: int | float | str = DEFAULT_MEMORY
    disk: int | float | str = DEFAULT_DISK
    pids: int = DEFAULT_PIDS
    isolation: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus(Record):
    """What the node has of a pool now. Machines are `filling` while they are made, `taken` between a create's promise
    and its claim; `claimed` ones are sandboxes that were members."""

    template_digest: str | None
    ready: int
    filling: int
    taken: int
    draining: int
    claimed: int
    hits: int
    misses: dict[str, int]
    """Creates of this template that started cold, by reason: `empty shape template inputs died`."""
    counted_since: str
    """When the counts of hits and misses began: they are kept until the node stops."""
    problem: str | None
    """Why the last refill was not made."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Record):
    """Machines of one template that the node keeps ready. `status` is None while the node is out of reach."""

    template: str
    size: int
    ceiling: int | None
    cpus: float
    memory_bytes: int
    disk_bytes: int
    inodes: int
    pids: int
    tier: str
    created_at: str
    updated_at: str
    status: PoolStatus | None = None
