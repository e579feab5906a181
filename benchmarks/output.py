"""The client of one long output, as a process whose memory is nothing else's: `python -m benchmarks.output
frames|ndjson SANDBOX_ID COMMAND [MB_PER_S SECONDS]`. With a rate it reads no faster, and stops after so many seconds.

Prints JSON: `bytes seconds cpu_ms grown_bytes sha256` (of standard output's bytes, as far as they were read).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

from bellglass import Sandbox
from bellglass.ids import new_ulid
from bellglass.sdk._sync.executions import follow_events
from bellglass.wire.output import NDJSON, OutputType
from benchmarks.memory import forget_peak, peak_bytes, resident_bytes

MEGABYTE = 1_000_000


def main() -> None:
    kind, sandbox_id, command, *rest = sys.argv[1:]
    rate, most_s = (float(value) for value in rest) if rest else (float("inf"), float("inf"))
    with closing(Sandbox.connect(sandbox_id)) as box:
        box.exec(["true"])  # the connection, and whatever is imported on the way
        body = {"command": command, "id": new_ulid(), "timeout": 600}
        pieces = _frames(box, body) if kind == "frames" else _lines(box, body)
        digest, count = hashlib.sha256(), 0
        forget_peak()
        before, cpu = resident_bytes(os.getpid()), time.process_time()
        begun = time.perf_counter()
        with closing(pieces):
            for piece in pieces:
                digest.update(piece)
                count += len(piece)
                elapsed_s = time.perf_counter() - begun
                if elapsed_s > most_s:
                    break
                # Not in place of a signal: this is the slow reader.
                time.sleep(max(count / MEGABYTE / rate - elapsed_s, 0))
        answer = {
            "bytes": count,
            "seconds": time.perf_counter() - begun,
            "cpu_ms": (time.process_time() - cpu) * 1000,
            "grown_bytes": peak_bytes(os.getpid()) - before,
            "sha256": digest.hexdigest(),
        }
    print(json.dumps(answer))


def _frames(box: Sandbox, body: dict[str, object]) -> Iterator[bytes]:
    """What box.exec reads with."""
    for event in follow_events(box._transport, box.id, str(body["id"]), body=body):
        if event.type is OutputType.STDOUT:
            yield event.data
        elif event.type is OutputType.EXIT and (event.value or {}).get("exit_code") != 0:
            raise AssertionError(f"it ended with {event.value}")


def _lines(box: Sandbox, body: dict[str, object]) -> Iterator[bytes]:
    """A plain client of the HTTP API."""
    connection = HTTPConnection(urlsplit(os.environ["BELLGLASS_API_URL"]).netloc, timeout=60)
    headers = {
        "Authorization": f"Bearer {os.environ['BELLGLASS_API_KEY']}",
        "Accept": NDJSON,
        "Content-Type": "application/json",
    }
    connection.request("POST", f"/v1/sandboxes/{box.id}/executions", json.dumps(body), headers)
    answer = connection.getresponse()
    last: dict[str, object] = {}
    for line in answer:
        last = json.loads(line)
        if last["stream"] == "stdout":
            yield base64.b64decode(str(last["b64"])) if "b64" in last else str(last["text"]).encode()
    if (last["stream"], last.get("exit_code")) != ("exit", 0):
        raise AssertionError(f"it ended with {last}")
    connection.close()


if __name__ == "__main__":
    main()
