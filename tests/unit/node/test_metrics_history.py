"""Samples on the disk: bounded, in order, one a minute for what is older, over torn records and nodes that went."""

from __future__ import annotations

import itertools
from pathlib import Path

from bellglass.node.metrics import history
from bellglass.node.metrics.history import FILE, FILE_BYTES, OLDER, RECENT, History, Sample

BEGAN = 1_000_000.0


def sample(number: int, step_s: float = 5.0) -> Sample:
    """Half a CPU all the time."""
    at = BEGAN + number * step_s
    return Sample(at, int(number * step_s * 0.5e9), 0.5, number, 2 * number, 3 * number)


def test_all_of_the_last_hour_and_one_a_minute_before(tmp_path: Path) -> None:
    made = History(tmp_path)
    count = RECENT * 3
    for number in range(count):
        made.add(sample(number))
    found = made.between(0.0, 1e12)
    recent = [one for one in found if one.at >= BEGAN + (count - RECENT) * 5]
    assert recent == [sample(number) for number in range(count - RECENT, count)]
    older = found[: -len(recent)]
    assert [round(b.at - a.at) for a, b in itertools.pairwise(older)] == [60] * (len(older) - 1)
    assert {round(one.cpu_share, 6) for one in older} == {0.5}
    assert older[0] == sample(0)
    assert made.between(BEGAN + 60, BEGAN + 180) == [sample(12), sample(24), sample(36)]


def test_its_size_is_bounded(tmp_path: Path) -> None:
    made = History(tmp_path)
    for number in range(RECENT + OLDER + 100):
        made.add(sample(number, 60.0))
    assert (tmp_path / FILE).stat().st_size == FILE_BYTES < 128 * 1024
    assert len(made.between(0.0, 1e12)) == OLDER


def test_another_node_goes_on(tmp_path: Path) -> None:
    History(tmp_path).add(sample(0))
    for number in range(1, 30):
        again = History(tmp_path)
        assert again.last() == sample(number - 1)
        again.add(sample(number))
    assert History(tmp_path).between(0.0, 1e12) == [sample(number) for number in range(30)]


def test_what_a_power_loss_has_torn_is_passed_over(tmp_path: Path) -> None:
    made = History(tmp_path)
    for number in range(5):
        made.add(sample(number))
    raw = bytearray((tmp_path / FILE).read_bytes())
    at = history._HEAD_BYTES + 2 * history._RECORD.size
    raw[at + 9] ^= 0xFF
    (tmp_path / FILE).write_bytes(raw)
    assert History(tmp_path).between(0.0, 1e12) == [sample(number) for number in (0, 1, 3, 4)]
    (tmp_path / FILE).write_bytes(b"")
    assert History(tmp_path).between(0.0, 1e12) == []
    History(tmp_path).add(sample(9))
    assert History(tmp_path).last() == sample(9)


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    made = History(tmp_path)
    made.add(sample(100))
    made.add(sample(10)._replace(cpu_ns=sample(101).cpu_ns))
    assert [one.at for one in made.between(0.0, 1e12)] == [sample(10).at, sample(100).at]
