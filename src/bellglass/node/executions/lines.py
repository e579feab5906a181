"""What the executions of a sandbox wrote, as lines in the order of time: the timeline read with the logs.

A line belongs to the piece in which it begins, and has all of the pieces that follow within JOIN_S. A place between
lines is (number of the piece, lines of it that lie before): it stays good while more is written, since pieces only
grow.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from bellglass.node.executions import timeline
from bellglass.node.executions.log import Cursor, ExecutionLog
from bellglass.node.executions.timeline import CONTINUES, ENDED, JOIN_S, STARTED, TOGETHER_S, Piece
from bellglass.node.guestlink.budget import CpuBudget
from bellglass.wire.guest import STDERR, STDOUT

KINDS = {STDOUT: "stdout", STDERR: "stderr", STARTED: "started", ENDED: "ended"}
MAX_LINE_BYTES = 16 * 1024
MAX_COMMAND = 1024
BUDGET_PIECES = 20_000
BUDGET_BYTES = 4 * 2**20
_TURN_BYTES, _TURN_PIECES = 64 * 1024, 256
_LOOK_AHEAD = 1024
_SEEK_BYTES = 32 * 1024
"""What finding a place in a log counts for."""
Place = tuple[int, int]


class Selection(NamedTuple):
    """`start` and `end` are seconds of the wall clock; `search` is text that a line has to hold."""

    start: float
    end: float
    search: str | None = None
    execution_id: str | None = None


class Line(NamedTuple):
    at: float
    kind: str
    execution_id: str
    text: str
    truncated: bool
    place: Place
    """To go on behind it, or going back before it."""


class Page(NamedTuple):
    lines: list[Line]
    place: Place
    """To go on at, also where no line fitted."""
    more: bool
    """There is more to look at now."""


class Lines:
    """Of one sandbox, running or not. `view(id)` answers an execution's log and record, or None once they are gone."""

    def __init__(
        self,
        folder: Path,
        view: Callable[[str], tuple[ExecutionLog, dict[str, Any]] | None],
        budget: CpuBudget | None = None,
    ) -> None:
        """`budget`: what reading costs the node's loop is the sandbox's to pay."""
        self._budget = budget or CpuBudget()
        self._began = time.perf_counter()
        self._folder = folder
        self._view = view
        self._views: dict[str, tuple[ExecutionLog, dict[str, Any]] | None] = {}
        self._cursors: dict[str, Cursor] = {}
        self._read_bytes = self._looked = 0

    async def forward(self, place: Place | None, limit: int, selection: Selection) -> Page:
        """The next ones behind `place`; from the oldest without."""
        first, _ = timeline.bounds(self._folder)
        stood = place if place is not None and place[0] >= first else (first, 0)
        found: list[Line] = []
        async for number, piece in self._paced(timeline.forward(self._folder, stood[0])):
            passed = stood[1] if number == stood[0] else 0
            lines = self._lines(number, piece) if _fits(piece, selection) else []
            for index, (text, truncated, is_open) in enumerate(lines[passed:], passed):
                if is_open and self._may_grow(piece):
                    return Page(found, (number, index), more=False)
                if selection.search is None or selection.search in text:
                    found.append(_line(piece, text, truncated, (number, index + 1)))
                    if len(found) == limit:
                        return Page(found, (number, index + 1), more=True)
            stood = (number, max(len(lines), passed))
            if self._spent():
                return Page(found, stood, more=True)
        return Page(found, stood, more=False)

    async def backward(self, place: Place | None, limit: int, selection: Selection) -> Page:
        """Those before `place`, the newest first; from the newest without."""
        first, end = timeline.bounds(self._folder)
        number, before = place if place is not None else (end - 1, None)
        found: list[Line] = []
        stood: Place = (first, 0)
        async for here, piece in self._paced(timeline.backward(self._folder, number)):
            lines = self._lines(here, piece) if _fits(piece, selection) else []
            upper = before if here == number and before is not None else len(lines)
            for index in range(min(upper, len(lines)) - 1, -1, -1):
                text, truncated, _ = lines[index]
                if selection.search is None or selection.search in text:
                    found.append(_line(piece, text, truncated, (here, index)))
                    if len(found) == limit:
                        return Page(found, (here, index), more=(here, index) > (first, 0))
            stood = (here, 0)
            if self._spent():
                return Page(found, stood, more=here > first)
        return Page(found, stood, more=False)

    # --- inside -----------------------------------------------------------------------------------------

    async def _paced(self, pieces: Any) -> AsyncIterator[tuple[int, Piece]]:
        """The loop is others' too."""
        rested_at = looked_at = 0
        self._began = time.perf_counter()
        for number, piece in pieces:
            self._looked += 1
            if self._read_bytes - rested_at > _TURN_BYTES or self._looked - looked_at > _TURN_PIECES:
                rested_at, looked_at = self._read_bytes, self._looked
                await self.pay()
            yield number, piece

    async def pay(self) -> None:
        """For what was read since; waits where that was more than the sandbox's share."""
        await asyncio.sleep(self._budget.spend(time.perf_counter() - self._began))
        self._began = time.perf_counter()

    def _spent(self) -> bool:
        return self._looked >= BUDGET_PIECES or self._read_bytes >= BUDGET_BYTES

    def _execution(self, execution_id: str) -> tuple[ExecutionLog, dict[str, Any]] | None:
        if execution_id not in self._views:
            self._views[execution_id] = self._view(execution_id)
        return self._views[execution_id]

    def _may_grow(self, piece: Piece) -> bool:
        """Whether a line without an end may still get one."""
        known = self._execution(piece.execution_id)
        is_young = 0 <= time.time() - piece.at <= JOIN_S + TOGETHER_S
        return known is not None and known[1]["state"] == "running" and is_young

    def _lines(self, number: int, piece: Piece) -> list[tuple[str, bool, bool]]:
        """Of a piece: text, whether it is cut, whether it has no end."""
        if piece.kind not in (STDOUT, STDERR):
            return [(self._told(piece), False, False)]
        raw, is_gap = self._bytes(piece)
        if piece.flags & CONTINUES:
            _, newline, raw = raw.partition(b"\n")
            if not newline:
                return []
        if not raw:
            return []
        whole = raw.split(b"\n")
        last = whole.pop()
        lines = [_shown(line, is_gap and index == 0, False) for index, line in enumerate(whole)]
        if last:
            lines.append(self._completed(number, piece, last, is_gap and not whole))
        return lines

    def _completed(self, number: int, piece: Piece, begun: bytes, is_gap: bool) -> tuple[str, bool, bool]:
        """With what other pieces have of the line."""
        is_open = True
        for looked, (_, other) in enumerate(timeline.forward(self._folder, number + 1)):
            self._looked += 1
            if looked == _LOOK_AHEAD or len(begun) > MAX_LINE_BYTES:
                return _shown(begun, True, False)
            if other.execution_id != piece.execution_id:
                continue
            if other.kind == ENDED or (other.kind == piece.kind and not other.flags & CONTINUES):
                is_open = False
                break
            if other.kind != piece.kind:
                continue
            more, newline, _ = self._bytes(other)[0].partition(b"\n")
            begun += more
            if newline:
                return _shown(begun, is_gap, False)
        return _shown(begun, is_gap, is_open)

    def _bytes(self, piece: Piece) -> tuple[bytes, bool]:
        """What the log still has of a piece, and whether its beginning is gone."""
        known = self._execution(piece.execution_id)
        if known is None:
            return b"", True
        cursor = self._cursors.get(piece.execution_id)
        if cursor is None or cursor.offset != piece.offset:
            cursor = self._cursors[piece.execution_id] = Cursor(piece.offset)
            self._read_bytes += _SEEK_BYTES
        chunks = known[0].read(cursor, piece.length)
        data = b"".join(chunk.data for chunk in chunks if chunk.stream == piece.kind)[: piece.length]
        self._read_bytes += len(data)
        return data, bool(chunks) and chunks[0].stream == 0

    def _told(self, piece: Piece) -> str:
        known = self._execution(piece.execution_id)
        record = known[1] if known is not None else {}
        if piece.kind == STARTED:
            command = record.get("command", "")
            return f"started: {command if isinstance(command, str) else shlex.join(command)}"[:MAX_COMMAND]
        if record.get("timed_out"):
            return "ended: timed out"
        if record.get("oom_killed"):
            return "ended: out of memory"
        if record.get("signal") is not None:
            return f"ended: {record['signal']}"
        return f"ended: exit code {record['exit_code']}" if record.get("exit_code") is not None else "ended"


def _fits(piece: Piece, selection: Selection) -> bool:
    return selection.start <= piece.at <= selection.end and selection.execution_id in (None, piece.execution_id)


def _shown(line: bytes, is_cut: bool, is_open: bool) -> tuple[str, bool, bool]:
    is_long = len(line) > MAX_LINE_BYTES
    return line[:MAX_LINE_BYTES].removesuffix(b"\r").decode("utf-8", "replace"), is_cut or is_long, is_open


def _line(piece: Piece, text: str, truncated: bool, place: Place) -> Line:
    return Line(piece.at, KINDS[piece.kind], piece.execution_id, text, truncated, place)
