"""How the kernel's scheduler weighs what moves bytes against what somebody waits for.

A waking task does not interrupt one that runs: it waits for that one's slice (EEVDF, 3-4 ms on a small machine), unless
its own slice is shorter. So who relays has a long one and interrupts nobody. Linux before 6.12 takes the slice for
nothing and has only the weights: by nice, and between sessions by that of the session (autogroup, proc(5)).

Server, node and agents keep what everybody has. With more weight, or a shorter slice, they interrupt each other and the
very client that they work for: up to a fifth less of output and of calls at once, for nothing that could be measured
beside a busy proxy.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

LONG_SLICE_US = 20_000
"""What the kernel takes is 100 us to 100 ms."""
RELAYING_NICE = 5
_PR_SET_TIMERSLACK = 29
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")  # size policy flags nice priority runtime deadline period and two clamps
_TAKES_NO_WEIGHT = frozenset(
    {
        errno.ENOENT,  # a kernel without autogroups
        errno.EPERM,  # a container's root without CAP_SYS_NICE
        errno.EACCES,
        errno.EINVAL,  # a session that the kernel itself began, init's or a kernel thread's
        errno.EAGAIN,  # within 100 ms of another change, for who has no CAP_SYS_ADMIN
    }
)


def relay() -> None:
    """This process, which leads a session of its own: it steps back behind those who answer, and may rest for a moment
    that is no longer than it asked for (timer slack is kept by execve, prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    _set(0, os.SCHED_BATCH, RELAYING_NICE, LONG_SLICE_US)
    weigh_session(0, RELAYING_NICE)


def weigh_session(pid: int, nice: int) -> None:
    """Of the process, 0 for the caller's. Nothing where the kernel takes no weight."""
    try:
        Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(nice))
    except OSError as error:
        if error.errno not in _TAKES_NO_WEIGHT:
            raise


def _set(pid: int, policy: int, nice: int, slice_us: int) -> None:
    number = _SYS_SCHED_SETATTR[os.uname().machine]
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, nice, 0, slice_us * 1000, 0, 0, 0, 0)
    if ctypes.CDLL(None, use_errno=True).syscall(number, pid, attributes, 0):
        error = ctypes.get_errno()
        raise OSError(error, f"sched_setattr: {os.strerror(error)}")
