"""Root of a sandbox becomes its agent and floods the node with frames: neighbours, the API and the node's memory."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from typing import Any

from bellglass.testing import hostile
from bellglass.testing.stack import Stack

CALL_S = 2.0
OPTIONS = {"cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "15m"}


def timed_calls(box: Any, count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.monotonic()
        assert box.exec(["echo", "neighbour"]).stdout == "neighbour\n"
        times.append(time.monotonic() - began)
    return sorted(times)


def test_hostile_agents_cost_their_neighbours_little(own_stack: Stack) -> None:
    with ExitStack() as owned:
        neighbour = owned.enter_context(own_stack.sandbox(**OPTIONS))
        boxes = {kind: owned.enter_context(own_stack.sandbox(**OPTIONS)) for kind in hostile.KINDS}
        quiet = timed_calls(neighbour, 40)
        for kind, box in boxes.items():
            hostile.take_over(box, kind)
        os.kill(own_stack.pids()["node"], signal.SIGKILL)
        for box in boxes.values():
            hostile.wait_taken(box)
        output = boxes["bytes"].start(["cat"])
        before = own_stack.status()["pss_bytes"]
        flooded = timed_calls(neighbour, 60)
        assert flooded[-1] < CALL_S
        assert flooded[30] < quiet[20] * 5 + 0.02, f"p50 {quiet[20]:.4f} s, then {flooded[30]:.4f} s"
        for box in boxes.values():
            began = time.monotonic()
            assert box.info().state == "running"
            assert time.monotonic() - began < CALL_S
        assert output.status().stdout_bytes > 0, "what it says in a command's name is that command's output"
        grown = {name: size - before[name] for name, size in own_stack.status()["pss_bytes"].items()}
        assert all(size < 32 << 20 for size in grown.values()), grown
        for box in boxes.values():
            began = time.monotonic()
            box.delete()
            assert time.monotonic() - began < CALL_S
        assert timed_calls(neighbour, 5)
