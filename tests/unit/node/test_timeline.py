"""The index over the logs of a sandbox: bounded, in order, over segments, torn ends and nodes that went."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from bellglass import ids
from bellglass.node.executions import lines, timeline
from bellglass.node.executions.lines import Lines, Selection
from bellglass.node.executions.log import ExecutionLog
from bellglass.node.executions.timeline import Timeline
from bellglass.node.guestlink.budget import CpuBudget
from bellglass.wire.guest import STDERR, STDOUT

ALL = Selection(0.0, 1e12)


class Writer:
    """One execution that writes into its log, and a timeline that hears of it."""

    def __init__(self, folder: Path, *, at_ms: list[int]) -> None:
        self.id = ids.new_ulid()
        self.folder = folder
        self.at_ms = at_ms
        self.timeline = Timeline(folder)
        self.log = ExecutionLog(folder, self.id, 2**20)
        self.record: dict[str, Any] = {"state": "running", "command": ["true"], "exit_code": None}
        folder.mkdir(exist_ok=True)

    def write(self, text: str, *, stream: int = STDOUT, after_ms: int = 200) -> None:
        self.at_ms[0] += after_ms
        data = text.encode()
        self.timeline.wrote(self.id, stream, self.log.append(stream, data), data)

    def texts(self, **selection: Any) -> list[str]:
        reader = Lines(self.folder, lambda id: (self.log, self.record) if id == self.id else None)
        page = asyncio.run(reader.forward(None, 100_000, ALL._replace(**selection)))
        return [line.text for line in page.lines]


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    at_ms = [1_000_000]
    monkeypatch.setattr(timeline.time, "time", lambda: at_ms[0] / 1000)
    monkeypatch.setattr(lines.time, "time", lambda: at_ms[0] / 1000)
    return Writer(tmp_path / "executions", at_ms=at_ms)


def pieces(writer: Writer) -> list[int]:
    return [piece.length for _, piece in timeline.forward(writer.folder, 0)]


def test_pieces_close_together_are_one(writer: Writer) -> None:
    for _ in range(5):
        writer.write("a\n", after_ms=5)
    writer.write("b\n", after_ms=100)
    writer.write("e\n", stream=STDERR, after_ms=1)
    writer.write("c\n", after_ms=1)
    assert pieces(writer) == [10, 2, 2, 2]
    assert writer.texts() == ["a"] * 5 + ["b", "e", "c"]


def test_a_line_goes_on_for_a_second_and_no_longer(writer: Writer) -> None:
    writer.write("be")
    assert writer.texts() == [], "it may still go on"
    writer.write("gin", after_ms=900)
    writer.write(" end\nnext", after_ms=900)
    writer.write("other\n", stream=STDERR)
    assert writer.texts() == ["begin end"], "what comes behind an open line waits"
    writer.at_ms[0] += 2000
    assert writer.texts() == ["begin end", "next", "other"]
    writer.write(" late\n")
    assert writer.texts() == ["begin end", "next", "other", " late"]
    writer.write("last")
    writer.record["state"] = "exited"
    assert writer.texts()[-1] == "last", "an execution that has ended writes no more"
    writer.timeline.ended(writer.id)
    assert writer.texts()[-2:] == ["last", "ended"]


def test_it_is_bounded_and_the_oldest_goes(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "SEGMENT_RECORDS", 8)
    for number in range(50):
        writer.write(f"{number}\n")
    assert sorted(path.name for path in writer.folder.glob("timeline.*")) == ["timeline.5", "timeline.6"]
    assert timeline.bounds(writer.folder) == (40, 50)
    assert writer.texts() == [str(number) for number in range(40, 50)]
    reader = Lines(writer.folder, lambda id: (writer.log, writer.record))
    page = asyncio.run(reader.forward((3, 7), 100, ALL))
    assert next(line.text for line in page.lines) == "40", "a place that is gone is the oldest one"
    back = asyncio.run(reader.backward(None, 3, ALL))
    assert [line.text for line in back.lines] == ["49", "48", "47"]
    rest = asyncio.run(reader.backward(back.place, 100, ALL))
    assert ([line.text for line in rest.lines], rest.more) == ([str(n) for n in range(46, 39, -1)], False)


def test_another_node_goes_on_and_writes_over_a_torn_end(writer: Writer) -> None:
    writer.write("one\n")
    writer.timeline.close()
    path = writer.folder / "timeline.0"
    path.write_bytes(path.read_bytes() + b"torn")
    writer.timeline = Timeline(writer.folder)
    writer.write("two\n")
    assert writer.texts() == ["one", "two"]
    assert path.stat().st_size % 48 == 0


def test_what_the_log_has_lost_is_left_out_and_said(writer: Writer) -> None:
    writer.write("a\nb")
    writer.write("c\n")
    writer.log.delete()
    assert writer.texts() == []
    reader = Lines(writer.folder, lambda id: None)
    assert asyncio.run(reader.forward(None, 10, ALL)).lines == []


def test_a_disk_that_takes_nothing_costs_lines_not_the_execution(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(timeline.log, "warning", lambda text, *values: said.append(text % values))
    writer.write("kept\n")
    writer.timeline.close()
    (writer.folder / "timeline.0").rename(writer.folder / "aside")
    (writer.folder / "timeline.0").mkdir()
    for _ in range(3):
        writer.write("lost\n")
    assert len(said) == 1
    assert "has gaps" in said[0]
    (writer.folder / "timeline.0").rmdir()
    (writer.folder / "aside").rename(writer.folder / "timeline.0")
    writer.write("again\n")
    assert writer.texts() == ["kept", "again"]


def test_a_search_through_much_ends_and_goes_on(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BUDGET_PIECES", 10)
    for number in range(95):
        writer.write("needle\n" if number == 77 else "hay\n")
    place, found, pages = None, [], 0
    while True:
        reader = Lines(writer.folder, lambda id: (writer.log, writer.record))
        page = asyncio.run(reader.forward(place, 100, ALL._replace(search="needle")))
        place, found, pages = page.place, found + page.lines, pages + 1
        if not page.more:
            break
    assert [line.text for line in found] == ["needle"]
    assert pages > 5


def test_reading_costs_the_sandbox_no_more_than_its_share(tmp_path: Path) -> None:
    """Lines of nothing cost the most: a page looks at so many."""
    folder, id = tmp_path / "executions", ids.new_ulid()
    folder.mkdir()
    index, log = Timeline(folder), ExecutionLog(folder, id, 2**23)
    data = b"\n" * 65536
    for _ in range(20):
        index.wrote(id, STDOUT, log.append(STDOUT, data), data)
    record = {"state": "running", "command": ["true"], "exit_code": None}

    def read(**selection: Any) -> CpuBudget:
        budget = CpuBudget()
        reader = Lines(folder, lambda _: (log, record), budget)
        asyncio.run(reader.forward(None, 100, ALL._replace(**selection)))
        return budget

    assert read(execution_id=ids.new_ulid()).pauses == 0, "what is little is told at once"
    began, used = time.perf_counter(), time.process_time()
    assert read(search="none has this").pauses > 0
    assert time.process_time() - used < 0.6 * (time.perf_counter() - began), "the rest of the time is others'"
