"""What one sandbox's frames may cost the node, whose loop is everybody's.

The time that the loop spends on a sandbox's frames is the host's processor time, not the sandbox's: so it is counted,
and a sandbox that has used up its share is not read from for a while. Its agent then waits in send(2), as it does for a
slow reader, so an honest one loses nothing. Frames that somebody asked for are not counted against it: new bytes of an
output are limited by windows, and a stream that ends was opened by a caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.15
"""Of one core, over time."""
BURST_S = 0.05
WAKE_S = 20e-6
"""What a turn costs beside the frames: the loop's own work, and the tasks that it wakes."""
BYTE_S = 4e-9
STREAM_S = 1e-3


class CpuBudget:
    """Of one sandbox, over all its links. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._debt_s = 0.0
        self._at = clock()
        self._earned_s = 0.0
        self.pauses = 0

    def earn_bytes(self, count: int) -> None:
        """So many new bytes of an output came."""
        self._earned_s += count * BYTE_S

    def earn_stream(self) -> None:
        """An execution or file operation came to its end."""
        self._earned_s += STREAM_S

    def spend(self, cpu_s: float) -> float:
        """A turn took `cpu_s`; answers for how many seconds the sandbox is to be left alone, mostly 0."""
        now = self._clock()
        debt_s = max(self._debt_s - SHARE * (now - self._at), 0.0)
        self._at = now
        cost_s = cpu_s + WAKE_S
        covered_s = min(cost_s, self._earned_s)
        # What was earned and not needed is kept, but not for long.
        self._earned_s = min(self._earned_s - covered_s, BURST_S)
        self._debt_s = debt_s + cost_s - covered_s
        if self._debt_s <= BURST_S:
            return 0.0
        self.pauses += 1
        return (self._debt_s - BURST_S / 2) / SHARE
