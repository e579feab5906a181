"""Four gibibytes as one file: the rate and the memory are those of one (`transfer`), which has the same bounds."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.cases.transfer import measure_size
from benchmarks.measure import Row


def measure(bench: Bench) -> list[Row]:
    return measure_size(bench, bench.times(4096, 1024), 1, case="transfer-4gib")
