"""Timing: percentiles, bounds, rows of the table, and taking turns between those that are compared.

A shared machine is noisy for minutes at a time, so two contenders measured one after the other compare two moments and
not two programs. `alternate` gives each its calls in small portions, in turns.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Value = Literal["min", "p50", "p95", "p99", "max"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of `n` samples; percentiles by nearest rank, so each is a sample that was really seen."""

    n: int
    min: float
    p50: float
    p95: float
    p99: float
    max: float


def summarize(samples: Sequence[float]) -> Summary:
    """Raises ValueError without samples."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)

    def rank(share: float) -> float:
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]

    return Summary(len(ordered), ordered[0], rank(0.50), rank(0.95), rank(0.99), ordered[-1])


@dataclass(frozen=True, slots=True)
class Bound:
    """`value` of the samples is to be at most `limit`, or with `at_least` no less than it."""

    value: Value
    limit: float
    at_least: bool = False

    def holds(self, summary: Summary, *, slack: float = 1.0) -> bool:
        """With a `slack` of 5 five times the time (or a fifth of the rate) still passes: for tests on busy machines."""
        reached = getattr(summary, self.value)
        return reached * slack >= self.limit if self.at_least else reached <= self.limit * slack


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what one contender did in one case."""

    case: str
    what: str
    who: str
    unit: str
    samples: Sequence[float] = field(repr=False)
    bounds: Sequence[Bound] = ()
    note: str = ""

    @property
    def summary(self) -> Summary:
        return summarize(self.samples)

    def missed(self, *, slack: float = 1.0) -> list[Bound]:
        return [bound for bound in self.bounds if not bound.holds(self.summary, slack=slack)]


@dataclass(slots=True)
class Contender:
    """`call` does the thing once. It answers None to be timed from outside, or the milliseconds of what counts of it
    (where preparation or cleaning up lies between)."""

    name: str
    call: Callable[[], float | None]
    times: int
    warm_up: int = 2


def alternate(contenders: Sequence[Contender], *, rounds: int = 10) -> dict[str, list[float]]:
    """Milliseconds by name. Every round gives each contender an equal share of its calls."""
    samples: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for contender in contenders:
        for _ in range(contender.warm_up):
            contender.call()
    for index in range(rounds):
        for contender in contenders:
            share = contender.times * (index + 1) // rounds - contender.times * index // rounds
            for _ in range(share):
                samples[contender.name].append(timed(contender.call))
    return samples


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds of one call, or the number that it answers itself."""
    begun = time.perf_counter_ns()
    own = call()
    elapsed_ms = (time.perf_counter_ns() - begun) / 1e6
    return own if isinstance(own, float) else elapsed_ms


@contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """`with stopwatch() as elapsed_ms: ...; elapsed_ms()`."""
    begun = time.perf_counter_ns()
    yield lambda: (time.perf_counter_ns() - begun) / 1e6


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Collect garbage before and not during: a full collection in this process is no one's latency."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
