"""What daemons do without: packages that a library of theirs would load and they never use, and what the heap keeps for
the next burst (see supervise.launch: up to 32 MiB), once a daemon has become idle.

Not while it is busy: fresh memory costs page faults, and `malloc_trim` some milliseconds of the loop.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def without(package: str) -> Iterator[None]:
    """In here the package is not installed, for a library that makes use of it where it is. One that is loaded already
    stays: there would be nothing to save."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
