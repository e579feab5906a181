"""One sandbox measured: what is read when, and what a sample says of the time between."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellglass.node.drivers.base import HasUsage, Usage
from bellglass.node.metrics import sampler
from bellglass.node.metrics.history import FILE, History
from bellglass.node.metrics.sampler import SETTLE_S, Watched

SECOND_NS = 10**9


class Machine:
    """A handle whose machine is as it is told."""

    def __init__(self) -> None:
        self.spent_ns = 3 * SECOND_NS
        self.reads = 0

    def cpu_ns(self) -> int:
        return self.spent_ns

    def usage(self) -> Usage:
        self.reads += 1
        return Usage(self.reads, 0, 0)


class Bench:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = Machine()
        assert isinstance(self.machine, HasUsage)
        self.folder = folder
        self.at = 1_000_000.0
        monkeypatch.setattr(sampler.time, "time", lambda: self.at)
        monkeypatch.setattr(sampler.time, "monotonic", lambda: self.at)
        self.watched = Watched(self.machine, History(folder))

    def look(self, *, after_s: float, busy: float = 0.0, keep: bool = True) -> float:
        """The share of a CPU that the sample tells."""
        self.at += after_s
        self.machine.spent_ns += int(busy * after_s * SECOND_NS)
        return round(self.watched.look(keep=keep).cpu_share, 6)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_the_cost_of_its_start_is_not_its_load(bench: Bench) -> None:
    assert bench.look(after_s=0, keep=False) == 0
    assert bench.look(after_s=5, busy=0.5) == 0.5
    assert bench.look(after_s=5, busy=0.25) == 0.25


def test_a_look_that_is_not_kept_changes_nothing(bench: Bench) -> None:
    bench.look(after_s=0)
    assert bench.look(after_s=1, busy=1.0, keep=False) == 1.0
    assert bench.look(after_s=1, busy=0.0) == 0.5
    assert len(History(bench.folder).between(0, 1e12)) == 2


def test_memory_of_an_idle_one_is_read_once_a_minute(bench: Bench) -> None:
    for _ in range(int(SETTLE_S / 5)):
        bench.look(after_s=5)
    settled = bench.machine.reads
    assert settled == SETTLE_S / 5, "what has just been active may still change"
    for _ in range(int(SETTLE_S / 5) * 3):
        bench.look(after_s=5)
    assert bench.machine.reads == settled + 3
    bench.look(after_s=5, busy=0.1)
    assert bench.machine.reads == settled + 4, "activity is looked at at once"


def test_another_node_goes_on_and_a_machine_that_counts_anew_is_idle(bench: Bench) -> None:
    bench.look(after_s=0)
    bench.look(after_s=5, busy=1.0)
    bench.watched = Watched(bench.machine, History(bench.folder))
    assert bench.look(after_s=10, busy=0.5) == 0.5
    bench.machine.spent_ns = 0
    assert bench.look(after_s=5) == 0
    bench.at -= 100
    assert bench.look(after_s=0, busy=0) == 0


def test_nothing_is_written_once_it_is_closed(bench: Bench) -> None:
    bench.look(after_s=0)
    (bench.folder / FILE).unlink()
    bench.watched.close()
    bench.look(after_s=5)
    assert not (bench.folder / FILE).exists()
