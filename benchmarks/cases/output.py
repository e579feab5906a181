"""A gibibyte of random bytes on standard output, every byte delivered: speed, processor time, and memory behind a
client that reads slowly.

The bytes are a file of the sandbox's, so that their sum is known and the kernel's random numbers are not what is
measured. Frames are read as the SDK reads them, NDJSON by a plain client that parses every line; both hash what comes,
in a process of their own (`benchmarks.output`). The slow reader takes 1 MB/s for some seconds while the program could
give everything at once; then it goes, and the program with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.hops import cpu_ms
from benchmarks.measure import Bound, Row
from benchmarks.memory import MIB, Growth, agent_pids

OURS = {"frames": "bellglass, the SDK's reader", "ndjson": "bellglass, NDJSON over plain HTTP"}
SPEED = {"frames": (Bound("p50", 200.0, at_least=True),), "ndjson": (Bound("p50", 80.0, at_least=True),)}
MEMORY = (Bound("max", 16.0),)
FILE = "output.bin"
DAEMONS = ("server", "node")
SLOW_MB_PER_S = 1.0
CLIENT_TIMEOUT_S = 300.0


def measure(bench: Bench) -> list[Row]:
    size_bytes = bench.times(1024, 256) * MIB
    size = f"{size_bytes // MIB} MiB of random bytes on stdout"
    rows = []
    with bench.sandbox() as box:
        made = box.exec(f"head -c {size_bytes} /dev/urandom > {FILE} && sha256sum {FILE}", check=True, timeout=300)
        digest = made.stdout.split()[0]
        pids = {name: pid for name, pid in bench.stack.pids().items() if name in DAEMONS}
        pids |= {"agent": min(agent_pids(box.id))}  # the first of the sandbox; a program may not have been executed yet
        for kind, who in OURS.items():
            speeds, cost, grown = [], [], []
            for _ in range(bench.times(3, 1)):
                before = sum(map(cpu_ms, pids.values()))
                answer, growth = _read(bench, box.id, pids, kind)
                if (answer["bytes"], answer["sha256"]) != (size_bytes, digest):
                    raise AssertionError(f"{kind}: {answer['bytes']} of {size_bytes} bytes, {answer['sha256']}")
                speeds.append(answer["bytes"] / 1e6 / answer["seconds"])
                spent_ms = sum(map(cpu_ms, pids.values())) - before + answer["cpu_ms"]
                cost.append(spent_ms / (answer["bytes"] / 1e6))
                grown.append(max(growth.values()) / MIB)
            rows += [
                Row("output", size, who, "MB/s", speeds, SPEED[kind]),
                Row("output", "processor time of server, node, agent and client", who, "ms/MB", cost),
                Row("output", "memory that any of them grew by", who, "MiB", grown, MEMORY),
            ]
        for kind, who in OURS.items():
            seconds = bench.times(20, 5)
            _, growth = _read(bench, box.id, pids, kind, str(SLOW_MB_PER_S), str(seconds))
            what = f"reader of {SLOW_MB_PER_S:g} MB/s for {seconds} s, growth of the"
            rows += [Row("output", f"{what} {name}", who, "MiB", [grew / MIB], MEMORY) for name, grew in growth.items()]
    return rows


def _read(
    bench: Bench, sandbox_id: str, pids: dict[str, int], kind: str, *pace: str
) -> tuple[dict[str, Any], dict[str, int]]:
    with Growth(pids) as growth:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.output", kind, sandbox_id, f"cat {FILE}", *pace],
            stdout=subprocess.PIPE, timeout=CLIENT_TIMEOUT_S, check=True, env=os.environ | bench.stack.environment,
            cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer, growth.bytes | {"client": answer["grown_bytes"]}
