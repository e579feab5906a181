"""Waiting for what nothing tells a test of."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float, what: str | Callable[[], str]) -> None:
    """`what` is said, or made and said, when it has not come true by then."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.02)
