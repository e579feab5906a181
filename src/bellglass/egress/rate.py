"""A bucket of tokens: so much at once, so much a second in the long run."""

from __future__ import annotations


class Bucket:
    """Times are seconds of a steady clock, always the caller's."""

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._left, self._at = burst, now

    def take(self, now: float) -> bool:
        """One token; False when there is none."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def wait_s(self, count: float = 1) -> float:
        """How long after the last `take` there will be so many."""
        return max(0.0, (count - self._left) / self._per_second)
