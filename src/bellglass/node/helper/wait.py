"""Waiting for what the kernel announces to nobody: the end of a mount, a loop device, a dying process's last traces."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], deadline: float, poll_s: float = 0.003) -> bool:
    """Until the condition holds (True), or the monotonic `deadline` has passed (False). It is tried at least once."""
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True
