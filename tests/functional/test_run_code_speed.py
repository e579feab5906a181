"""Code in contexts is fast, and no run of many is lost: the benchmark's bounds, wide, since others work beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellglass.testing.stack import Stack
from benchmarks.bench import Bench
from benchmarks.cases import run_code

SLACK = 3.0
"""A quiet machine keeps the bounds themselves: `python -m benchmarks --only run-code`."""
pytestmark = pytest.mark.root


def test_runs_are_fast_and_none_is_lost(stack: Stack, no_leak: None, tmp_path: Path) -> None:
    rows = run_code.measure(Bench(stack, tmp_path, quick=True))
    assert len(rows) == 5 and all(row.bounds for row in rows)
    missed = {(row.what, row.who): row.summary for row in rows if row.missed(slack=SLACK)}
    assert not missed, missed
