"""What the daemons hold, every few seconds, and the trend of it.

A trend is a line fitted through all samples of one process's life (least squares), not the difference of two of them:
a collector's moment or an open request would decide that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment. `at_s` counts from the start of the soak. `anon_bytes` is the part of PSS that is no
    file's: the rest changes with who else on the host uses the same libraries."""

    at_s: float
    pid: int
    pss_bytes: int
    anon_bytes: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Trend:
    """`first` and `last` are the fitted line's, at the ends of the window."""

    samples: int
    window_s: float
    first: float
    last: float

    @property
    def growth(self) -> float:
        return self.last - self.first

    @property
    def growth_per_hour(self) -> float:
        return self.growth / self.window_s * 3600 if self.window_s else 0.0


def sample(pid: int, at_s: float) -> Sample | None:
    """None for a process that is gone. Needs root for those of other users."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        pss, anon = _number(rollup, "Pss:") * 1024, _number(rollup, "Pss_Anon:") * 1024
        threads = _number(Path(f"/proc/{pid}/status").read_text(), "Threads:")
        return Sample(at_s, pid, pss, anon, len(list(Path(f"/proc/{pid}/fd").iterdir())), threads)
    except (FileNotFoundError, ProcessLookupError):
        return None


def fit(points: Sequence[tuple[float, float]]) -> Trend:
    """The least-squares line through (seconds, value). Raises ValueError for fewer than three points."""
    if len(points) < 3:
        raise ValueError(f"{len(points)} samples have no trend")
    times, values = [at for at, _ in points], [value for _, value in points]
    mean_at, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((at - mean_at) ** 2 for at in times)
    slope = sum((at - mean_at) * (value - mean) for at, value in points) / spread if spread else 0.0
    first, last = times[0], times[-1]
    return Trend(len(points), last - first, mean + slope * (first - mean_at), mean + slope * (last - mean_at))


def settled(samples: Sequence[Sample], from_s: float) -> list[Sample]:
    """Those since `from_s` of the process that lives now: what a killed one held says nothing."""
    last = samples[-1].pid if samples else 0
    return [one for one in samples if one.pid == last and one.at_s >= from_s]


def folder_bytes(folder: Path, leave_out: Sequence[str] = ()) -> int:
    """Allocated bytes of the files below; folders named in `leave_out` (relative) are not looked into."""
    total = 0
    for place, names, files in os.walk(folder):
        relative = Path(place).relative_to(folder)
        names[:] = [name for name in names if str(relative / name) not in leave_out]
        for name in files:
            try:
                total += Path(place, name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _number(text: str, name: str) -> int:
    for line in text.splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise ProcessLookupError(name)  # a zombie has none
