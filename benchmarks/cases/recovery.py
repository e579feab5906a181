"""A node that is killed while it holds a hundred sandboxes: until each of them has answered a command again.

The clock starts with the SIGKILL and stops when the last of the hundred results is there, so the supervisor's restart,
Python's start, the node's recovery, the agents' dialling and the client's own work are all in it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from bellglass import AsyncSandbox
from bellglass.errors import BellglassError
from benchmarks.bench import Bench
from benchmarks.measure import Bound, Row, quiet_collector, stopwatch

SMALL: dict[str, Any] = {"cpus": 0.25, "memory": "256MiB", "disk": "256MiB", "pids": 64, "lifetime": "1h"}
OURS = "bellglass, async SDK"
CREATED_AT_ONCE = 8
POLL_S = 0.01
AWAY_S = 60.0


def measure(bench: Bench) -> list[Row]:
    return asyncio.run(_measure(bench))


async def _measure(bench: Bench) -> list[Row]:
    count, key = bench.times(100, 20), {"api_url": bench.stack.api_url, "api_key": bench.stack.api_key}
    first: list[float] = []
    all_of_them: list[float] = []
    async with AsyncExitStack() as owned:
        gate = asyncio.Semaphore(CREATED_AT_ONCE)

        async def create() -> AsyncSandbox:
            async with gate:
                return await AsyncSandbox("base", **SMALL, **key)

        boxes = await asyncio.gather(*(create() for _ in range(count)))
        for box in boxes:
            owned.push_async_exit(box)
        await _exec_all(boxes)
        with quiet_collector():
            for _ in range(bench.times(5, 2)):
                with stopwatch() as elapsed_ms:
                    bench.stack.kill("node")
                    await _until_one_answers(boxes[0])
                    first.append(elapsed_ms())
                    await _exec_all(boxes)
                    all_of_them.append(elapsed_ms())
    what = f"node killed, {count} sandboxes: until"
    return [
        Row("recovery", f"{what} one answers", OURS, "ms", first),
        Row("recovery", f"{what} all have run a command", OURS, "ms", all_of_them, (Bound("max", 3000.0),)),
    ]


async def _until_one_answers(box: AsyncSandbox) -> None:
    """Asked anew all the time: the SDK alone would ask at growing intervals."""
    deadline = time.monotonic() + AWAY_S
    while True:
        try:
            await box.info()
            await box.files.list(".")
            return
        except BellglassError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise
            await asyncio.sleep(POLL_S)


async def _exec_all(boxes: list[AsyncSandbox]) -> None:
    results = await asyncio.gather(*(box.exec(["true"]) for box in boxes))
    if not all(result.ok for result in results):
        raise AssertionError("a command failed")
