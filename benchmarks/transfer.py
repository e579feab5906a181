"""The client of one big transfer, as a process whose memory is nothing else's: `python -m benchmarks.transfer
up|down|stream SANDBOX_ID FILE`. Prints JSON: `bytes seconds fsynced_seconds grown_bytes sha256` (null for down: the
parent reads the file; and for stream, which counts what comes and keeps nothing of it).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from bellglass import Sandbox
from benchmarks.memory import forget_peak, peak_bytes, resident_bytes

REMOTE = "transfer.bin"


def main() -> None:
    direction, sandbox_id, name = sys.argv[1:]
    local = Path(name)
    box = Sandbox.connect(sandbox_id)
    # The connection, and whatever is imported by the first transfer, is there before the count begins.
    box.files.write_bytes("warm", b"up")
    box.files.read_bytes("warm")
    forget_peak()
    before = resident_bytes(os.getpid())
    begun = time.perf_counter()
    digest, count = None, 0
    if direction == "up":
        digest = box.files.upload(local, REMOTE).sha256
    elif direction == "down":
        box.files.download(REMOTE, local)
    else:
        count = sum(map(len, box.files.read_stream(REMOTE)))
    seconds = fsynced_seconds = time.perf_counter() - begun
    if direction == "down":
        with local.open("rb") as file:
            os.fsync(file.fileno())
        fsynced_seconds = time.perf_counter() - begun
    answer = {
        "bytes": count or local.stat().st_size,
        "seconds": seconds,
        "fsynced_seconds": fsynced_seconds,
        "grown_bytes": peak_bytes(os.getpid()) - before,
        "sha256": digest,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
