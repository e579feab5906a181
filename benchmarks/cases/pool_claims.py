"""From nothing to a first command's result with a warm pool: bursts of 20 creates, one as soon as the one before has
answered, on a pool of 10. Claims come faster than refills, so some start cold: they are in the samples, and counted."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.measure import Bound, Row, quiet_collector, stopwatch
from benchmarks.pools import warm_pool

WHAT = "create to first exec's result, 20 in a burst on a pool of 10"
OURS = "bellglass, sync SDK"
BOUNDS = (Bound("p50", 30.0),)
BURST, SIZE = 20, 10
SHAPE = {"cpus": 1, "memory": "512MiB", "disk": "1GiB"}


def measure(bench: Bench) -> list[Row]:
    samples: list[float] = []
    created: list[float] = []
    cold: list[float] = []
    with warm_pool(bench, SIZE, **SHAPE) as pool, quiet_collector():
        for _ in range(bench.times(5, 2)):
            pool.wait_full()
            before = sum(pool.status.misses.values())
            boxes = []
            try:
                for _ in range(BURST):
                    with stopwatch() as elapsed_ms:
                        boxes.append(bench.stack.sandbox("base", **SHAPE))
                        created.append(elapsed_ms())
                        result = boxes[-1].exec(["true"])
                        samples.append(elapsed_ms())
                    if not result.ok:
                        raise AssertionError(f"true ended with {result!r}")
                cold.append(float(sum(pool.status.misses.values()) - before))
            finally:
                for box in boxes:
                    box.delete()
    return [
        Row("pool-claims", WHAT, OURS, "ms", samples, BOUNDS),
        Row("pool-claims", "of it: the create alone", OURS, "ms", created),
        Row("pool-claims", "of a burst's 20, those that started cold", OURS, "", cold),
    ]
