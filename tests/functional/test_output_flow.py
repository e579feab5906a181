"""Much output through every process: each byte arrives, at a speed, and none of them grows, however slow the reader."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bellglass.testing import kernel

ROOT = Path(__file__).resolve().parents[2]
GROWTH = 16 << 20
SIZE = 128 << 20
LEAST_MB_PER_S = {"frames": 20.0, "ndjson": 8.0}
"""A tenth of what the benchmark demands of a quiet machine."""


def read(stack: Any, box: Any, kind: str, command: str, *pace: str) -> dict[str, Any]:
    """What the benchmark's client measured of itself, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.output", kind, box.id, command, *pace],
        env={"PATH": os.environ["PATH"], **stack.environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


class Growth:
    """Of server, node and agent, by their high-water marks."""

    def __init__(self, stack: Any, box: Any) -> None:
        found = {name: pid for name, pid in stack.pids().items() if name in ("server", "node")}
        inside = [process.pid for process in kernel.processes() if box.id in process.cgroups]
        self.pids = found | {"agent": min(inside)}

    def __enter__(self) -> Growth:
        self.before = {name: kernel.resident_bytes(pid) for name, pid in self.pids.items()}
        for pid in self.pids.values():
            kernel.reset_peak_memory(pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = {name: kernel.peak_memory_bytes(pid) - self.before[name] for name, pid in self.pids.items()}


@pytest.mark.parametrize("kind", ["frames", "ndjson"])
def test_every_random_byte_arrives(stack: Any, shared_box: Any, kind: str) -> None:
    made = shared_box.exec(f"head -c {SIZE} /dev/urandom > random && sha256sum random", check=True, timeout=120)
    with Growth(stack, shared_box) as growth:
        answer = read(stack, shared_box, kind, "cat random")
    assert (answer["bytes"], answer["sha256"]) == (SIZE, made.stdout.split()[0])
    assert answer["bytes"] / 1e6 / answer["seconds"] > LEAST_MB_PER_S[kind]
    grown = growth.bytes | {"client": answer["grown_bytes"]}
    assert max(grown.values()) < GROWTH, grown
    shared_box.files.remove("random")


def test_slow_readers_cost_no_memory(stack: Any, shared_box: Any) -> None:
    """Three at once, each at 1 MB/s, of programs that could say a gibibyte in seconds."""
    with Growth(stack, shared_box) as growth, ThreadPoolExecutor(3) as pool:
        kinds = ["frames", "ndjson", "frames"]
        answers = list(pool.map(lambda kind: read(stack, shared_box, kind, "head -c 1G /dev/zero", "1", "4"), kinds))
    for answer in answers:
        assert 3_000_000 < answer["bytes"] < 8_000_000, "it was the reader that set the pace"
        assert answer["sha256"] == hashlib.sha256(bytes(answer["bytes"])).hexdigest()
    grown = growth.bytes | {"client": max(answer["grown_bytes"] for answer in answers)}
    assert max(grown.values()) < GROWTH, grown
    for execution in shared_box.executions(state="running"):
        shared_box.execution(execution.id).kill()
