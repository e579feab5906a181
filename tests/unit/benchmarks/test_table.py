"""The speed table's arithmetic: percentiles that were really seen, bounds, turns, and what is written down."""

from __future__ import annotations

import json

import pytest

from benchmarks.measure import Bound, Contender, Row, alternate, summarize
from benchmarks.memory import Growth, peak_bytes
from benchmarks.report import to_json, to_markdown


def row(samples: list[float], *bounds: Bound, unit: str = "ms") -> Row:
    return Row("case", "what", "who", unit, samples, bounds)


def test_percentiles_are_samples_by_nearest_rank() -> None:
    summary = summarize([float(n) for n in range(100, 0, -1)])
    assert (summary.n, summary.min, summary.p50, summary.p95, summary.p99, summary.max) == (100, 1, 50, 95, 99, 100)
    assert summarize([7.0]) == summarize([7.0])
    assert (summarize([7.0]).p50, summarize([7.0]).p99) == (7.0, 7.0)
    assert summarize([1.0, 2.0]).p50 == 1.0
    with pytest.raises(ValueError):
        summarize([])


def test_a_bound_holds_up_to_its_limit_and_slack_widens_it() -> None:
    assert row([1.0, 4.0, 9.0], Bound("p50", 4.0)).missed() == []
    slow = row([4.1, 4.1, 4.1], Bound("p50", 4.0), Bound("max", 5.0))
    assert slow.missed() == [Bound("p50", 4.0)]
    assert slow.missed(slack=2) == []
    rate = row([240.0], Bound("p50", 250.0, at_least=True), unit="MB/s")
    assert rate.missed() and not rate.missed(slack=1.1)
    assert not row([250.0], Bound("p50", 250.0, at_least=True)).missed()


def test_contenders_take_turns_and_may_time_themselves() -> None:
    calls: list[str] = []

    def note(name: str) -> float | None:
        calls.append(name)
        return 5.0 if name == "b" else None

    found = alternate(
        [Contender("a", lambda: note("a"), 4, warm_up=1), Contender("b", lambda: note("b"), 2, warm_up=0)], rounds=2
    )
    assert "".join(calls) == "a" + "aab" + "aab"
    assert found["b"] == [5.0, 5.0] and len(found["a"]) == 4 and all(0 < ms < 1000 for ms in found["a"])


def test_a_miss_is_written_down_as_one() -> None:
    rows = [row([9.0], Bound("p50", 4.0)), row([3.0], Bound("p50", 4.0)), row([3.0])]
    kept = to_json(rows, {"cpus": 2}, "2026-01-02T03:04:05Z", quick=False)
    assert [entry["verdict"] for entry in json.loads(json.dumps(kept))["rows"]] == ["missed", "pass", None]
    page = to_markdown(rows, {"cpus": 2}, "2026-01-02T03:04:05Z", quick=True)
    assert "| p50 ≤ 4 | **missed** |" in page and "| p50 ≤ 4 | pass |" in page and "with --quick" in page


def test_growth_is_the_peak_and_not_what_is_left() -> None:
    import os

    before = peak_bytes(os.getpid())
    assert before > 0
    with Growth({"me": os.getpid()}) as growth:
        block = bytearray(48 << 20)
        block[::4096] = b"x" * len(block[::4096])
        del block
    assert 40 << 20 < growth.bytes["me"] < 80 << 20
    with Growth({"me": os.getpid()}) as growth:
        pass
    assert growth.bytes["me"] < 8 << 20
