"""How long and how often a server that is away is asked again for what belongs to a sandbox and to no connection."""

from __future__ import annotations

import time

from bellglass.errors import ConnectionFailed
from bellglass.sdk._http import RETRY_DELAYS_S, was_sent

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


class Attempts:
    """Of a request that goes on over broken connections. As long as no server was `reached` it is given up like any
    other one."""

    def __init__(self, *, reached: bool = False) -> None:
        self._reached = reached
        self._failed = 0
        self._patience = Patience()

    def success(self) -> None:
        self._reached, self._failed = True, 0
        self._patience.success()

    def delay_s(self, error: Exception) -> float | None:
        """Seconds to wait before the next attempt; None when it has lasted too long. Raises `error` when there was no
        server to begin with."""
        self._failed += 1
        self._reached = self._reached or not isinstance(error, ConnectionFailed) or was_sent(error)
        if not self._reached and self._failed > len(RETRY_DELAYS_S):
            raise error
        return self._patience.delay_s()
