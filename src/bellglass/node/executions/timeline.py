"""When the executions of a sandbox wrote what: an index over their logs, in the order of time.

    <folder>/timeline.<number>     records: time, offset and length in the execution's log, kind, flags, execution id

The bytes themselves are in the logs. A record is appended for each piece of output behind the piece itself, to the page
cache: a killed node loses none. Pieces that follow each other closely share a record. Two segments are kept, so the
index is bounded, and what it has forgotten is still in the logs.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bellglass.wire.guest import STDERR, STDOUT

STARTED, ENDED = 16, 17
CONTINUES = 1
"""The piece begins in a line that an earlier one has begun, not longer than JOIN_S ago."""
JOIN_S = 1.0
TOGETHER_S = 0.05
TOGETHER_BYTES = 64 * 1024
SEGMENT_RECORDS = 16384
SEGMENTS = 2
_RECORD = struct.Struct("<dQIBB26s")
_BLOCK_RECORDS = 1024
log = logging.getLogger("bellglass.executions")


class Piece(NamedTuple):
    """`kind` is STDOUT or STDERR with `length` bytes at `offset` of the execution's log, STARTED or ENDED without."""

    at: float
    offset: int
    length: int
    kind: int
    flags: int
    execution_id: str


class Timeline:
    """Written by one sandbox's executions. What the host's disk does not take is missing in it, and said once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._number: int | None = None
        self._position = 0
        self._last: Piece | None = None
        self._open_lines: dict[tuple[str, int], float] = {}
        """When each line was written to last that has no end yet."""
        self._complained = False

    def started(self, execution_id: str) -> None:
        self._add(Piece(_now(), 0, 0, STARTED, 0, execution_id))

    def ended(self, execution_id: str) -> None:
        self._add(Piece(_now(), 0, 0, ENDED, 0, execution_id))
        for kind in (STDOUT, STDERR):
            self._open_lines.pop((execution_id, kind), None)

    def wrote(self, execution_id: str, kind: int, offset: int, data: bytes | memoryview) -> None:
        at, key, last = _now(), (execution_id, kind), self._last
        before = self._open_lines.get(key)
        flags = CONTINUES if before is not None and 0 <= at - before <= JOIN_S else 0
        if data[-1] == 0x0A:
            self._open_lines.pop(key, None)
        else:
            self._open_lines[key] = at
        if (
            last is not None
            and (last.execution_id, last.kind, last.offset + last.length) == (execution_id, kind, offset)
            and 0 <= at - last.at <= TOGETHER_S
            and last.length + len(data) <= TOGETHER_BYTES
        ):
            self._add(last._replace(length=last.length + len(data)), instead=True)
        else:
            self._add(Piece(at, offset, len(data), kind, flags, execution_id))

    def close(self) -> None:
        """Nothing is held open; it goes on by itself."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._last = None

    def _add(self, piece: Piece, *, instead: bool = False) -> None:
        try:
            if self._fd is None or (not instead and self._position >= SEGMENT_RECORDS):
                self._open()
            assert self._fd is not None
            position = self._position - 1 if instead else self._position
            os.pwrite(self._fd, _RECORD.pack(*piece[:5], piece.execution_id.encode()), position * _RECORD.size)
            self._position = position + 1
            self._last = piece
        except OSError as error:
            self.close()
            if not self._complained:
                self._complained = True
                log.warning("the log of %s has gaps: %s", self._folder.name, error)

    def _open(self) -> None:
        """The newest segment, or the next one when that is full; a record that was torn off is written over."""
        self.close()
        if self._number is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            numbers = _segments(self._folder)
            self._number = numbers[-1] if numbers else 0
        fd = self._open_segment(self._number)
        if self._position >= SEGMENT_RECORDS:
            os.close(fd)
            self._number += 1
            fd = self._open_segment(self._number)
            _path(self._folder, self._number - SEGMENTS).unlink(missing_ok=True)
        self._fd = fd

    def _open_segment(self, number: int) -> int:
        fd = os.open(_path(self._folder, number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._position = os.fstat(fd).st_size // _RECORD.size
        return fd


def _now() -> float:
    """To the microsecond, which is what answers tell: what they told selects the same again."""
    return round(time.time(), 6)


def bounds(folder: Path) -> tuple[int, int]:
    """The numbers of the oldest record that is kept, and of the next one."""
    numbers = _segments(folder)
    if not numbers:
        return 0, 0
    last = _path(folder, numbers[-1])
    return numbers[0] * SEGMENT_RECORDS, numbers[-1] * SEGMENT_RECORDS + last.stat().st_size // _RECORD.size


def forward(folder: Path, number: int) -> Iterator[tuple[int, Piece]]:
    """The records from `number` on, with their numbers."""
    _, end = bounds(folder)
    while number < end:
        block = _block(folder, number, min(_BLOCK_RECORDS, end - number))
        if not block:
            return
        for piece in block:
            yield number, piece
            number += 1


def backward(folder: Path, number: int) -> Iterator[tuple[int, Piece]]:
    """The records from `number` back to the oldest."""
    first, end = bounds(folder)
    number = min(number, end - 1)
    while number >= first:
        low = max(first, number // SEGMENT_RECORDS * SEGMENT_RECORDS, number - _BLOCK_RECORDS + 1)
        block = _block(folder, low, number - low + 1)
        if not block:
            return
        for piece in reversed(block):
            yield number, piece
            number -= 1


def _block(folder: Path, number: int, count: int) -> list[Piece]:
    """At most `count` records of one segment; none when it is gone."""
    index = number % SEGMENT_RECORDS
    try:
        with _path(folder, number // SEGMENT_RECORDS).open("rb") as file:
            raw = os.pread(file.fileno(), min(count, SEGMENT_RECORDS - index) * _RECORD.size, index * _RECORD.size)
    except FileNotFoundError:
        return []
    whole = raw[: len(raw) // _RECORD.size * _RECORD.size]
    return [
        Piece(at, offset, length, kind, flags, id.decode("ascii", "replace"))
        for at, offset, length, kind, flags, id in _RECORD.iter_unpack(whole)
    ]


def _segments(folder: Path) -> list[int]:
    try:
        names = [path.name.removeprefix("timeline.") for path in folder.iterdir() if path.name.startswith("timeline.")]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def _path(folder: Path, number: int) -> Path:
    return folder / f"timeline.{number}"
