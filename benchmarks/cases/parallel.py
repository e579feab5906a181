"""Sixty-four executions at once over sixteen sandboxes: how many a second, and how long one of them takes.

A wave of calls is kept full by as many tasks of the async SDK in this process, so the client's own processor time is
in the figure, as it would be in a program that drives sandboxes. None may fail.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from bellglass import AsyncSandbox
from benchmarks.bench import Bench
from benchmarks.measure import Bound, Row, quiet_collector

SANDBOXES, AT_ONCE = 16, 64
COMMAND = ["/bin/true"]
SIZE = {"cpus": 1, "memory": "256MiB", "disk": "1GiB"}
WHAT = f"{AT_ONCE} parallel execs over {SANDBOXES} sandboxes"
WHO = "bellglass, async SDK"
RATE = (Bound("p50", 300.0, at_least=True),)
LATENCY = (Bound("p99", 300.0),)


def measure(bench: Bench) -> list[Row]:
    rates, times = asyncio.run(_measure(bench))
    return [Row("parallel", WHAT, WHO, "1/s", rates, RATE), Row("parallel", f"{WHAT}: each", WHO, "ms", times, LATENCY)]


async def _measure(bench: Bench) -> tuple[list[float], list[float]]:
    key = {"api_url": bench.stack.api_url, "api_key": bench.stack.api_key}
    async with AsyncExitStack() as owned:
        boxes = [await owned.enter_async_context(AsyncSandbox("base", **SIZE, **key)) for _ in range(SANDBOXES)]
        await _wave(boxes, AT_ONCE * 2)
        rates: list[float] = []
        times: list[float] = []
        with quiet_collector():
            for _ in range(bench.times(5, 1)):
                count = bench.times(1280, 320)
                begun = time.perf_counter()
                times += await _wave(boxes, count)
                rates.append(count / (time.perf_counter() - begun))
    return rates, times


async def _wave(boxes: list[AsyncSandbox], count: int) -> list[float]:
    """Milliseconds of each call."""
    times: list[float] = []
    left = iter(range(count))

    async def work() -> None:
        for number in left:
            begun = time.perf_counter()
            result = await boxes[number % len(boxes)].exec(COMMAND)
            times.append((time.perf_counter() - begun) * 1000)
            if not result.ok:
                raise AssertionError(f"/bin/true ended with {result!r}")

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    return times
