"""Daemons of a test's own installation, ended and waited for."""

from __future__ import annotations

import os
import signal
import threading
import time

from bellglass.supervise.control import read_record
from bellglass.supervise.processes import ProcessId
from bellglass.supervise.supervisor import EARLY_DEATH_S
from bellglass.testing.stack import Stack

BACK_TIMEOUT_S = 60.0
_LOOK_S = 0.01


def process(stack: Stack, name: str) -> ProcessId | None:
    """The daemon as the supervisor last wrote it down."""
    record = read_record(stack.data)
    return record.processes.get(name) if record else None


def await_grown(stack: Stack) -> None:
    """Until no death is an early one any more: after several of those in a row the supervisor pauses for seconds, and
    a test that kills again and again would sit there."""
    ready_at = stack.data.supervisor_file.stat().st_mtime  # written when the last one was ready
    threading.Event().wait(max(ready_at + EARLY_DEATH_S + _LOOK_S - time.time(), 0))


def end(stack: Stack, name: str, number: int = signal.SIGKILL) -> ProcessId:
    """Signal `server` or `node`; answers which process that was, once it is gone."""
    await_grown(stack)
    found = process(stack, name)
    assert found is not None and found.alive(), f"no {name} to end"
    os.kill(found.pid, number)
    assert found.wait(time.monotonic() + BACK_TIMEOUT_S), f"{name} does not end"
    return found


def end_and_await(stack: Stack, name: str, number: int = signal.SIGKILL) -> None:
    """The same, and wait until the supervisor has another one ready."""
    before = end(stack, name, number)
    deadline = time.monotonic() + BACK_TIMEOUT_S
    pause = threading.Event()
    # The supervisor writes its record when the daemon is ready: a file, and nobody to tell us.
    while (now := process(stack, name)) is None or now == before or not now.alive():
        assert time.monotonic() < deadline, f"{name} does not come back:\n{stack.logs()}"
        pause.wait(_LOOK_S)
