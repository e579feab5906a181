"""The daemons' logs have a size: one older part of it is kept, what is before that goes.

A daemon writes to the descriptor that it was started with, always at the end of the file (O_APPEND), so the file is
copied and then cut to nothing under it. The few lines that come between the two are lost.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

LOOK_AGAIN_MS = 10_000


def rotate(folder: Path, limit_bytes: int) -> list[str]:
    """Names of the logs that were cut. Where the host has no room for the copy the log is cut all the same."""
    cut = []
    for log in sorted(folder.glob("*.log")):
        if log.stat().st_size <= limit_bytes:
            continue
        older = log.with_name(f"{log.name}.1")
        try:
            shutil.copy2(log, older)
        except OSError:
            with suppress(OSError):
                older.unlink()
        os.truncate(log, 0)
        cut.append(log.name)
    return cut
