"""What the tests of file operations and of archives ask of an outcome and of the folder it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from .conftest import Stream, errno_name


def failure(stream: Stream) -> tuple[str, str]:
    assert stream.failure is not None, f"it succeeded: {stream.result}"
    return stream.failure.stage, errno_name(stream.failure.errno)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".bellglass-*")]


def wait_until(condition: Callable[[], bool], timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
