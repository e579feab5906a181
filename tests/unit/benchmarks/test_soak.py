"""The soak's arithmetic: a trend is of all samples of one life, and what a killed process held is no part of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from benchmarks.soak.__main__ import table
from benchmarks.soak.samples import Sample, fit, folder_bytes, sample, settled


def test_a_line_is_found_exactly() -> None:
    trend = fit([(float(at), 100 + 3.0 * at) for at in range(10, 20)])
    assert (trend.first, trend.last, trend.growth, trend.window_s) == pytest.approx((130, 157, 27, 9))
    assert trend.growth_per_hour == pytest.approx(3 * 3600)


def test_one_outlier_at_the_end_is_no_growth() -> None:
    flat = [(float(at), 50.0) for at in range(100)]
    trend = fit([*flat, (100.0, 90.0)])
    assert trend.growth < 4, "two points alone would say 40"
    assert fit([(0.0, 1.0), (5.0, 1.0), (9.0, 1.0)]).growth == 0
    with pytest.raises(ValueError, match="2 samples"):
        fit([(0.0, 1.0), (1.0, 2.0)])


def test_only_the_last_life_counts() -> None:
    lives = [Sample(float(at), 1 if at < 5 else 2, 100 - at, 50 - at, 10, 1) for at in range(10)]
    assert [one.at_s for one in settled(lives, 0)] == [5, 6, 7, 8, 9]
    assert [one.at_s for one in settled(lives, 7)] == [7, 8, 9]
    assert settled([], 0) == []


def test_a_sample_of_this_process() -> None:
    before = sample(os.getpid(), 1.5)
    assert before is not None and before.at_s == 1.5 and before.pss_bytes > before.anon_bytes > 1 << 20
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    hold = threading.Event()
    thread = threading.Thread(target=hold.wait)
    thread.start()
    after = sample(os.getpid(), 2.0)
    hold.set()
    thread.join()
    for descriptor in held:
        os.close(descriptor)
    assert after is not None
    assert (after.descriptors - before.descriptors, after.threads - before.threads) == (5, 1)
    assert sample(2**22 + 1, 0) is None


def test_folders_are_counted_by_what_they_take(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "much").write_bytes(b"x" * 500_000)
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(1 << 30)
    assert 100_000 <= folder_bytes(tmp_path, ("kept",)) < 200_000
    assert folder_bytes(tmp_path) > 600_000


def test_the_table_says_what_was_wrong() -> None:
    trend = {"samples": 9, "window_s": 60.0, "first": 40 << 20, "last": 41 << 20, "per_hour": 60 << 20}
    report = {
        "minutes": 3, "workers": 4, "done": {"create": 7}, "kills": {"node": 2}, "refused": {},
        "pool": {"hits": 5, "misses": {"empty": 2, "died": 0}},
        "daemons": {"node": {"pss": trend, "anon": trend, "descriptors": {"first": 58.2, "last": 57.9}}},
        "disk": {"grown_bytes": 0, "server_bytes": 1 << 20, "logs_bytes": 1 << 20}, "wrong": [],
    }  # fmt: skip
    assert "40.0 MiB  41.0 MiB    40.0 MiB  41.0 MiB   +60.0 MiB        58 to 58" in table(report)
    assert "creates from the pool: 5; cold: 2 empty (" in table(report)
    assert table(report).endswith("nothing wrong, nothing left")
    assert "WRONG: it grew" in table(report | {"wrong": ["it grew"]})
