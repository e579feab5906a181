"""Processes as the supervisor names them: a pid is only meant together with its start time, since pids are reused."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat: clock ticks after boot."""

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Raises ProcessLookupError when there is no such process."""
        return cls(pid, _start_ticks(pid))

    def alive(self) -> bool:
        try:
            return _start_ticks(self.pid) == self.start_ticks and _state(self.pid) != "Z"
        except ProcessLookupError:
            return False

    def send(self, number: int) -> bool:
        """Signal exactly this process; False if it is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)

    def wait(self, deadline: float) -> bool:
        """Until it is gone (True) or `time.monotonic()` has reached the deadline. Needs not be a child."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.alive():
                return True
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(max(deadline - time.monotonic(), 0) * 1000))
        finally:
            os.close(descriptor)

    def kill(self) -> None:
        """SIGKILL. Returns when it is gone."""
        self.send(signal.SIGKILL)
        self.wait(time.monotonic() + 10)

    def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after the grace. Returns when it is gone."""
        if self.send(signal.SIGTERM) and not self.wait(time.monotonic() + grace_s):
            self.kill()


def _fields(pid: int) -> list[str]:
    try:
        # The command's name may hold spaces and parentheses: count from its end.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(pid) from error


def _start_ticks(pid: int) -> int:
    return int(_fields(pid)[19])


def _state(pid: int) -> str:
    return _fields(pid)[0]
