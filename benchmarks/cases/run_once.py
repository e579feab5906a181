"""The whole life of a sandbox for one line of Python, against `docker run --rm` of the same root file system.

Both have the same limits, no network and uid 1000. `docker run --rm` returns when the container's files are removed,
while our delete returns when every process is dead and the id is gone, and what is on disk is reclaimed behind: a
second row has that included.
"""

from __future__ import annotations

from benchmarks.bench import LIMITS, Bench
from benchmarks.measure import Bound, Contender, Row, alternate, quiet_collector, stopwatch, summarize

WHAT = "create, python3 -c 'print(42)', delete"
COMMAND = ["python3", "-c", "print(42)"]
OURS = "bellglass, sync SDK"
COMMAND_LINE = "bellglass run"
DOCKER = "docker run --rm --network none"


def measure(bench: Bench) -> list[Row]:
    reclaimed: list[float] = []

    def ours() -> float:
        with stopwatch() as elapsed_ms:
            with bench.sandbox() as box:
                answer = box.exec(COMMAND).stdout
            took_ms = elapsed_ms()
            _check(answer)
            bench.wait_reclaimed(box.id)
            reclaimed.append(elapsed_ms())
        return took_ms

    def command_line() -> None:
        done = bench.stack.command("run", "--", *COMMAND)
        _check(done.stdout.decode())

    times = bench.times(30, 5)
    contenders = [Contender(OURS, ours, times), Contender(COMMAND_LINE, command_line, bench.times(10, 3))]
    if docker := bench.docker:
        contenders.append(Contender(DOCKER, lambda: _check(docker.run(COMMAND, LIMITS)), times))
    with quiet_collector():
        samples = alternate(contenders, rounds=5)
    bounds = (Bound("p50", summarize(samples[DOCKER]).p50),) if DOCKER in samples else ()
    rows = [
        Row("run", WHAT, OURS, "ms", samples[OURS], bounds, note="bound: Docker's p50 of this run" if bounds else ""),
        Row("run", f"{WHAT}, disk reclaimed", OURS, "ms", reclaimed[-times:]),
        Row("run", WHAT, COMMAND_LINE, "ms", samples[COMMAND_LINE]),
    ]
    if DOCKER in samples:
        rows.append(Row("run", WHAT, DOCKER, "ms", samples[DOCKER]))
    return rows


def _check(printed: str) -> None:
    if printed != "42\n":
        raise AssertionError(f"print(42) printed {printed!r}")
