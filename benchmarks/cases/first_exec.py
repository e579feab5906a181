"""From nothing to a first command's result: create a sandbox, run `true` in it. No pool, nothing prepared for it."""

from __future__ import annotations

from benchmarks.bench import LIMITS, Bench
from benchmarks.measure import Bound, Contender, Row, alternate, quiet_collector, stopwatch

WHAT = "create to first exec's result, no pool"
BOUNDS = (Bound("p50", 150.0),)
OURS = "bellglass, sync SDK"
DOCKER = "docker run --detach, docker exec"


def measure(bench: Bench) -> list[Row]:
    created: list[float] = []

    def ours() -> float:
        with stopwatch() as elapsed_ms:
            box = bench.sandbox()
            created.append(elapsed_ms())
            try:
                result = box.exec(["true"])
                took_ms = elapsed_ms()
            finally:
                box.delete()
        if not result.ok:
            raise AssertionError(f"true ended with {result!r}")
        bench.wait_reclaimed(box.id)
        return took_ms

    times = bench.times(50, 10)
    contenders = [Contender(OURS, ours, times)]
    if docker := bench.docker:

        def theirs() -> float:
            with stopwatch() as elapsed_ms:
                container = docker.container(LIMITS)
                docker.command("exec", container, "true")
                took_ms = elapsed_ms()
            docker.command("rm", "--force", container)
            return took_ms

        contenders.append(Contender(DOCKER, theirs, bench.times(20, 5)))
    with quiet_collector():
        samples = alternate(contenders, rounds=5)
    rows = [Row("first-exec", WHAT, OURS, "ms", samples[OURS], BOUNDS)]
    rows.append(Row("first-exec", "of it: the create alone", OURS, "ms", created[-times:]))
    if DOCKER in samples:
        rows.append(Row("first-exec", WHAT, DOCKER, "ms", samples[DOCKER]))
    return rows
