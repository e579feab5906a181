"""How much of the host's disk the logs of one sandbox may take: what admission counts beside the sandbox's own disk.

Finished executions keep as much as KEPT_LOGS full rings together. Those that run share RUNNING_LOGS full rings: a new
one gets a full ring while there is room, then half of what is left, and at the least a small one. A reader that waits
gets every byte with a ring of any size.
"""

from __future__ import annotations

from collections.abc import Iterable

KEPT_LOGS = 16
RUNNING_LOGS = 8
LEAST_RING_BYTES = 2**20


def ring_bytes(limit_bytes: int, running: Iterable[int]) -> int:
    """The size of a new execution's ring; `running` are those of the executions that run."""
    left = RUNNING_LOGS * limit_bytes - sum(running)
    return min(limit_bytes, max(left // 2, LEAST_RING_BYTES))


def most_bytes(limit_bytes: int, at_once: int) -> int:
    """What all logs of one sandbox can take together, at the worst."""
    return (KEPT_LOGS + RUNNING_LOGS) * limit_bytes + at_once * min(limit_bytes, LEAST_RING_BYTES)
