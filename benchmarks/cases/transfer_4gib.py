"""Four gibibytes as one file beside one gibibyte, in turns: rate and memory are the same.

One after the other would compare two minutes of a disk that others use too. Up is durable. Down is compared as a
stream that nobody keeps, which is what Bellglass does, as a copy that is on the client's disk in the end, and as one
that the kernel may keep in memory. The sandbox has as much memory as the large file has bytes: its own page cache does
not hold all of it.
"""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.cases.transfer import OURS, RoundTrips
from benchmarks.measure import Bound, Row

CASE = "transfer-4gib"
SAME = (Bound("p50", 0.8, at_least=True),)


def measure(bench: Bench) -> list[Row]:
    small_mib, large_mib = bench.times(1024, 256), bench.times(4096, 1024)
    small, large = RoundTrips(bench, streamed=True), RoundTrips(bench, streamed=True)
    with small.file(small_mib) as small_file, large.file(large_mib) as large_file:
        for _ in range(bench.times(3, 1)):
            small.go(small_file)
            large.go(large_file)
    name = f"{large_mib} MiB over {small_mib} MiB"
    return [
        *small.speed_rows(CASE, small_mib),
        *large.speed_rows(CASE, large_mib),
        Row(CASE, f"{name}, up", OURS, "x", _ratios(small.up, large.up), SAME),
        Row(CASE, f"{name}, down as a stream", OURS, "x", _ratios(small.streamed, large.streamed), SAME),
        Row(CASE, f"{name}, down to a durable file", OURS, "x", _ratios(small.fsynced, large.fsynced), SAME),
        Row(CASE, f"{name}, down to a file in memory", OURS, "x", _ratios(small.down, large.down), SAME),
        *large.memory_rows(CASE),
    ]


def _ratios(small: list[float], large: list[float]) -> list[float]:
    return [after / before for before, after in zip(small, large, strict=True)]
