"""How long and how often a server that is away is asked again for what belongs to a sandbox and to no connection."""

from __future__ import annotations

import time

RECONNECT_S = 60.0
"""A server or node that restarts is back long before."""
_FIRST_DELAY_S = 0.05
_MAX_DELAY_S = 2.0


class Patience:
    """Counts from the first failure after the last success."""

    def __init__(self) -> None:
        self.success()

    def success(self) -> None:
        self._delay_s = _FIRST_DELAY_S
        self._give_up: float | None = None

    def delay_s(self) -> float | None:
        """Seconds to wait before the next attempt; None when it has lasted too long."""
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + RECONNECT_S
        delay_s = self._delay_s
        if now + delay_s > self._give_up:
            return None
        self._delay_s = min(delay_s * 2, _MAX_DELAY_S)
        return delay_s
