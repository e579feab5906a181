"""Sandboxes that do nothing cost next to nothing: the benchmark's bounds, wide, since others work beside it."""

from __future__ import annotations

from pathlib import Path

from bellglass.testing.stack import Stack
from benchmarks.bench import Bench
from benchmarks.cases import idle

SLACK = 3.0
"""A quiet machine keeps the bounds themselves: `python -m benchmarks --only idle`."""


def test_idle_sandboxes_cost_little(stack: Stack, no_leak: None, tmp_path: Path) -> None:
    rows = {row.what: row for row in idle.measure(Bench(stack, tmp_path, quick=True))}
    assert len(rows) == 8
    host = rows.pop("an idle sandbox: the host")  # what others take and give back meanwhile is in it
    assert host.bounds
    missed = {what: row.summary.p50 for what, row in rows.items() if row.missed(slack=SLACK)}
    assert not missed, missed


def test_a_busy_sandbox_is_seen(stack: Stack, no_leak: None) -> None:
    """What the figures rest on tells a sandbox that holds memory from one that does not."""
    with stack.sandbox(**idle.SMALL) as box:
        [pids] = idle.pids_by_sandbox([box.id]).values()
        before = sum(map(idle.pss_bytes, pids))
        held = box.start(
            ["python3", "-c", "b = bytearray(30 << 20); print('held', flush=True); input()"], stdin_open=True
        )
        assert next(iter(held.output())).text == "held\n"
        [pids] = idle.pids_by_sandbox([box.id]).values()
        assert sum(map(idle.pss_bytes, pids)) - before > 30 << 20 > before
