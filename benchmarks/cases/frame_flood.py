"""What a neighbour notices when a sandbox's root has become its agent and floods the node with frames.

The hostile agent gets its link when the node is restarted; then the neighbour's calls are measured while it floods, and
while it is stopped, in turns. `ratio` is flooded p50 over quiet p50, pair by pair.
"""

from __future__ import annotations

import os
import signal

from bellglass.testing import hostile, kernel
from benchmarks.bench import Bench
from benchmarks.measure import Bound, Row, quiet_collector, summarize, timed

COMMAND = ["/bin/true"]
SIZE = {"cpus": 1, "memory": "256MiB", "disk": "1GiB"}
KINDS = ("pongs", "pings", "bytes")
WHO = "bellglass, sync SDK"


def measure(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    quiet: list[float] = []
    with bench.stack.sandbox("base", **SIZE) as neighbour:

        def call() -> None:
            if not neighbour.exec(COMMAND).ok:
                raise AssertionError("/bin/true failed")

        for kind in KINDS:
            flooded: list[float] = []
            ratios: list[float] = []
            with bench.stack.sandbox("base", **SIZE) as box, quiet_collector():
                hostile.take_over(box, kind)
                os.kill(bench.stack.pids()["node"], signal.SIGKILL)
                hostile.wait_taken(box)
                output = box.start(["cat"]) if kind == "bytes" else None
                for _ in range(bench.times(10, 3)):
                    pair = []
                    for number, kept in ((signal.SIGSTOP, quiet), (signal.SIGCONT, flooded)):
                        _send(box.id, number)
                        samples = [timed(call) for _ in range(bench.times(50, 20))]
                        kept += samples
                        pair.append(summarize(samples).p50)
                    ratios.append(pair[1] / pair[0])
                del output
            rows.append(Row("flood", f"exec beside a flood of frames: {kind}", WHO, "ms", flooded))
            rows.append(Row("flood", f"its p50 over the quiet one: {kind}", WHO, "x", ratios, (Bound("p50", 2.0),)))
    return [Row("flood", "exec of /bin/true beside a sandbox that rests", WHO, "ms", quiet), *rows]


def _send(sandbox_id: str, number: signal.Signals) -> None:
    """To the hostile agent alone, from the host: the real one and its neighbours go on."""
    for process in kernel.processes():
        if sandbox_id in process.cgroups and process.command.startswith("python3"):
            os.kill(process.pid, number)
