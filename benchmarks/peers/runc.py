"""`runc exec` into a sandbox of ours: what the bare runtime takes for the same command in the same container."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path


class RuncFailed(Exception):
    """The runtime refused; the message holds the command line."""


def exec_in(runtime_root: Path, sandbox_id: str, command: Sequence[str]) -> Callable[[], None]:
    """A call that runs the command once. `runtime_root` is runc's --root of the installation."""
    [container] = [entry.name for entry in runtime_root.iterdir() if sandbox_id in entry.name]
    line = ["runc", "--root", str(runtime_root), "exec", "--user", "1000:1000", container, *command]

    def call() -> None:
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuncFailed(f"{' '.join(line)} ended with {done.returncode}: {done.stderr.strip()}")

    return call
