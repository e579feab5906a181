"""E2B's API costs little over ours, and its SDK is answered soon: the benchmark's bounds, wide, since others work
beside it."""

from __future__ import annotations

from pathlib import Path

from bellglass.testing.stack import Stack
from benchmarks.bench import Bench
from benchmarks.cases import e2b

SLACK = 3.0
"""A quiet machine keeps the bounds themselves: `python -m benchmarks --only e2b`."""


def test_the_facade_costs_little(stack: Stack, no_leak: None, tmp_path: Path) -> None:
    rows = e2b.measure(Bench(stack, tmp_path, quick=True))
    assert sum(bool(row.bounds) for row in rows) == 3
    missed = {(row.what, row.who): row.summary for row in rows if row.missed(slack=SLACK)}
    assert not missed, missed
