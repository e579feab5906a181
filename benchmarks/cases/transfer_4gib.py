"""Four gibibytes as one file beside one gibibyte, in turns: rate and memory are the same.

One after the other would compare two minutes of a disk that others use too. Before each download as much memory as it
will fill is touched: on a virtual machine that gives free memory back to its host a large file would else be measured
on memory that has to be fetched again (here 324 MB/s in place of 569), a small one on what its upload has just freed.
"""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.cases.transfer import OURS, RoundTrips
from benchmarks.measure import Bound, Row

CASE = "transfer-4gib"
SAME = (Bound("p50", 0.8, at_least=True),)


def measure(bench: Bench) -> list[Row]:
    small_mib, large_mib = bench.times(1024, 256), bench.times(4096, 1024)
    small, large = RoundTrips(bench, touched=True), RoundTrips(bench, touched=True)
    with small.file(small_mib) as small_file, large.file(large_mib) as large_file:
        for _ in range(bench.times(3, 1)):
            small.go(small_file)
            large.go(large_file)
    ratios = {
        way: [after / before for before, after in zip(getattr(small, way), getattr(large, way), strict=True)]
        for way in ("up", "down")
    }
    return [
        *small.speed_rows(CASE, small_mib),
        *large.speed_rows(CASE, large_mib),
        *(
            Row(CASE, f"{large_mib} MiB over {small_mib} MiB, {way}", OURS, "x", samples, SAME)
            for way, samples in ratios.items()
        ),
        *large.memory_rows(CASE),
    ]
