"""The whole life of a sandbox for one line of Python, taken from a warm pool, against `docker run --rm`.

First from a pool that is full each time, then 50 in a row on a pool of 5: there the refills run beside them, and those
that find the pool empty start cold; all are in the samples. The bound is a fifth of Docker's p50 of the same run.
"""

from __future__ import annotations

from benchmarks.bench import LIMITS, Bench
from benchmarks.measure import Bound, Contender, Row, alternate, quiet_collector, stopwatch, summarize
from benchmarks.pools import warm_pool

COMMAND = ["python3", "-c", "print(42)"]
WHAT = "create from a pool, python3 -c 'print(42)', delete"
OURS = "bellglass, sync SDK"
DOCKER = "docker run --rm --network none"
SIZE, ROW = 5, 50


def measure(bench: Bench) -> list[Row]:
    times = bench.times(30, 8)
    with warm_pool(bench, SIZE) as pool, quiet_collector():

        def ours() -> float:
            pool.wait_full()
            return _once(bench)

        contenders = [Contender(OURS, ours, times)]
        if docker := bench.docker:
            contenders.append(Contender(DOCKER, lambda: _check(docker.run(COMMAND, LIMITS)), times))
        samples = alternate(contenders, rounds=5)
        pool.wait_full()
        before = sum(pool.status.misses.values())
        in_a_row = [_once(bench) for _ in range(ROW)]
        cold = float(sum(pool.status.misses.values()) - before)
    fifth = (Bound("p50", summarize(samples[DOCKER]).p50 / 5),) if DOCKER in samples else ()
    note = "bound: a fifth of Docker's p50 of this run" if fifth else ""
    rows = [
        Row("pool-run", WHAT, OURS, "ms", samples[OURS], fifth, note=note),
        Row("pool-run", f"the same, {ROW} in a row on a pool of {SIZE}", OURS, "ms", in_a_row, fifth, note=note),
        Row("pool-run", f"of these {ROW}, those that started cold", OURS, "", [cold]),
    ]
    if DOCKER in samples:
        rows.append(Row("pool-run", "python3 -c 'print(42)'", DOCKER, "ms", samples[DOCKER]))
    return rows


def _once(bench: Bench) -> float:
    with stopwatch() as elapsed_ms:
        with bench.sandbox() as box:
            answer = box.exec(COMMAND).stdout
        took_ms = elapsed_ms()
    _check(answer)
    return took_ms


def _check(printed: str) -> None:
    if printed != "42\n":
        raise AssertionError(f"print(42) printed {printed!r}")
