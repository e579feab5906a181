"""What a sandbox uses, over time."""

from __future__ import annotations

import dataclasses

from bellglass.record import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxMetrics(Record):
    """One sample, all of it measured from outside of the sandbox."""

    time: str
    cpus: float
    cpu_percent: float
    """Of all of its CPUs, since the sample before: 100 is all of them busy."""
    memory_bytes: int
    """The limit."""
    memory_used_bytes: int
    """Of programs, kernel and tmpfs: what can't be given back."""
    memory_cache_bytes: int
    """Of files that the kernel keeps; it gives this back when programs need it."""
    disk_bytes: int
    """The limit."""
    disk_used_bytes: int
    """What its disk takes of the host's, the journal of its file system included."""
