"""What every case gets: a running installation, Docker if it is to be compared with, and how much to measure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bellglass.testing.stack import Stack
from benchmarks.peers.docker import Docker

LIMITS = ("--cpus", "2", "--memory", "4g", "--pids-limit", "512")
"""Docker's words for a sandbox's default limits."""
RECLAIM_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Bench:
    """`scratch` is a folder on disk for a case's own files."""

    stack: Stack
    scratch: Path
    docker: Docker | None = None
    quick: bool = False
    say: Callable[[str], None] = print

    def times(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def sandbox(self) -> Any:
        """One with every default: 2 CPUs, 4 GiB of memory, 10 GiB of disk, user 1000."""
        return self.stack.sandbox("base")

    def wait_reclaimed(self, sandbox_id: str) -> None:
        """Until nothing of a deleted sandbox is left on disk, which is the last that goes. Raises TimeoutError."""
        folder = self.stack.data.sandbox_dir(sandbox_id)
        deadline = time.monotonic() + RECLAIM_TIMEOUT_S
        while folder.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{folder} is still there after {RECLAIM_TIMEOUT_S:g} s")
            # Polled, not followed as an event: what counts is when the files are gone.
            time.sleep(0.0005)
