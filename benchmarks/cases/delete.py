"""Deleting a running sandbox: until its id answers 404, and until nothing of it is left on disk."""

from __future__ import annotations

from bellglass.errors import NotFound
from benchmarks.bench import LIMITS, Bench
from benchmarks.measure import Bound, Contender, Row, alternate, quiet_collector, stopwatch

WHAT = "delete until the id answers 404"
BOUNDS = (Bound("p50", 30.0),)
OURS = "bellglass, sync SDK"
DOCKER = "docker rm --force"


def measure(bench: Bench) -> list[Row]:
    reclaimed: list[float] = []

    def ours() -> float:
        box = bench.sandbox()
        # A sandbox that was used: a process of it is alive when it is deleted.
        box.start(["sleep", "1000"])
        with stopwatch() as elapsed_ms:
            box.delete()
            while True:
                try:
                    box.info()
                except NotFound:
                    break
            took_ms = elapsed_ms()
            bench.wait_reclaimed(box.id)
            reclaimed.append(elapsed_ms())
        return took_ms

    times = bench.times(30, 10)
    contenders = [Contender(OURS, ours, times)]
    if docker := bench.docker:

        def theirs() -> float:
            container = docker.container(LIMITS)
            with stopwatch() as elapsed_ms:
                docker.command("rm", "--force", container)
                return elapsed_ms()

        contenders.append(Contender(DOCKER, theirs, bench.times(20, 5)))
    with quiet_collector():
        samples = alternate(contenders, rounds=5)
    rows = [
        Row("delete", WHAT, OURS, "ms", samples[OURS], BOUNDS),
        Row("delete", "delete until all is reclaimed", OURS, "ms", reclaimed[-times:]),
    ]
    if DOCKER in samples:
        rows.append(Row("delete", "removal, disk reclaimed", DOCKER, "ms", samples[DOCKER]))
    return rows
