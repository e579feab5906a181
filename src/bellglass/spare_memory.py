"""A daemon that has become idle gives back what its heap keeps for the next burst (see supervise.launch: up to 32 MiB).

Not while it is busy: fresh memory costs page faults, and `malloc_trim` some milliseconds of the loop.
"""

from __future__ import annotations

import asyncio
import ctypes
import time

LOOK_S = 15.0
IDLE_SHARE = 0.02
"""Of one core, over LOOK_S: a hundred idle sandboxes cost less."""


async def give_back(look_s: float = LOOK_S) -> None:
    """For ever: once after each time that was busy. Returns where the C library can't do it (musl)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    is_spare = True
    used_s = time.process_time()
    while trim is not None:
        await asyncio.sleep(look_s)
        before_s, used_s = used_s, time.process_time()
        if used_s - before_s > IDLE_SHARE * look_s:
            is_spare = True
        elif is_spare:
            trim(0)
            is_spare = False
