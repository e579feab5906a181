"""A sandbox's samples on the host's disk: two rings of fixed records in one file, so that its size is bounded.

    head      magic, then how many samples were ever put into each ring
    recent    every sample, the newest RECENT of them
    older     one of each OLDER_STEP_S, the newest OLDER of them

A sample is written to the page cache: a killed node loses none. A host that loses power may leave any of it torn: a
record carries a checksum, and one that does not fit is passed over.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

FILE = "metrics"
RECENT = 720
OLDER = 1440
OLDER_STEP_S = 60.0
_MAGIC = b"BGMETR1\0"
_HEAD = struct.Struct("<8sQQ")
_HEAD_BYTES = 64
_RECORD = struct.Struct("<dQdQQQI4x")
FILE_BYTES = _HEAD_BYTES + (RECENT + OLDER) * _RECORD.size


class Sample(NamedTuple):
    """`at` is the wall clock; `cpu_share` of one CPU, since the sample before."""

    at: float
    cpu_ns: int
    cpu_share: float
    memory_used: int
    memory_cache: int
    disk_used: int


class History:
    """One sandbox's file; nothing is held open. The methods raise OSError when the host's disk does."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._counts: list[int] | None = None
        self._older: Sample | None = None
        """The newest of the older ones."""

    def last(self) -> Sample | None:
        """The newest one."""
        found = self._read_ring(0)
        return max(found, default=None)

    def add(self, sample: Sample) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            counts = self._counts if self._counts is not None else self._load(fd)
            self._put(fd, 0, counts, sample)
            if self._older is None or not 0 <= sample.at - self._older.at < OLDER_STEP_S:
                self._put(fd, 1, counts, self._since_older(sample))
            os.pwrite(fd, _HEAD.pack(_MAGIC, *counts), 0)
            self._counts = counts
        finally:
            os.close(fd)

    def between(self, start: float, end: float) -> list[Sample]:
        """In order: each sample for as far back as there are all, before that one a minute."""
        recent = sorted(sample for sample in self._read_ring(0) if sample.at <= end)
        from_here = recent[0].at if recent else float("inf")
        older = sorted(sample for sample in self._read_ring(1) if sample.at < from_here and sample.at <= end)
        return [sample for sample in (*older, *recent) if sample.at >= start]

    def _since_older(self, sample: Sample) -> Sample:
        """With the CPU's share of the whole step."""
        before = self._older
        self._older = sample
        if before is None or sample.at <= before.at or sample.cpu_ns < before.cpu_ns:
            return sample
        return sample._replace(cpu_share=(sample.cpu_ns - before.cpu_ns) / 1e9 / (sample.at - before.at))

    def _put(self, fd: int, ring: int, counts: list[int], sample: Sample) -> None:
        slot = counts[ring] % (RECENT, OLDER)[ring]
        raw = _RECORD.pack(*sample, 0)
        os.pwrite(fd, _RECORD.pack(*sample, zlib.crc32(raw)), _ring_at(ring) + slot * _RECORD.size)
        counts[ring] += 1

    def _load(self, fd: int) -> list[int]:
        """Go on behind what an earlier node has written."""
        head = os.pread(fd, _HEAD.size, 0)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            return [0, 0]
        self._older = max(self._read_ring(1), default=None)
        return list(_HEAD.unpack(head)[1:])

    def _read_ring(self, ring: int) -> list[Sample]:
        try:
            with self._path.open("rb") as file:
                raw = os.pread(file.fileno(), (RECENT, OLDER)[ring] * _RECORD.size, _ring_at(ring))
        except FileNotFoundError:
            return []
        found = []
        for *values, checksum in _RECORD.iter_unpack(raw[: len(raw) // _RECORD.size * _RECORD.size]):
            sample = Sample(*values)
            if sample.at > 0 and checksum == zlib.crc32(_RECORD.pack(*sample, 0)):
                found.append(sample)
        return found


def _ring_at(ring: int) -> int:
    return _HEAD_BYTES + ring * RECENT * _RECORD.size
