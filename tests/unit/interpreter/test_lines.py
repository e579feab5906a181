"""The host's lines: none too long whatever is in it, nothing lost on the way, and nobody waits for a slow reader."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

PLACE = Path(__file__).resolve().parents[3] / "templates/interpreter"


@pytest.fixture(scope="module")
def lines() -> Any:
    """The module as it lies in the template."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLACE))
        return importlib.import_module("bellglass_kernels.lines")


@pytest.mark.parametrize("character", ["x", '"', "\\", "\0", "é", "\u2028", "🎉", "\n"])
@pytest.mark.parametrize("event", ["stdout", "result"])
def test_long_values_come_in_pieces_that_fit(lines: Any, event: str, character: str) -> None:
    text = character * 400_000
    told = {"event": event, "run": "r"} | ({"text": text} if event == "stdout" else {"data": {"a": text, "b": [text]}})
    encoded = [lines.encode(piece) for piece in lines.pieces(told)]
    assert len(encoded) > 1 and all(len(line) <= lines.MAX_LINE and line.isascii() for line in encoded)
    assert all(line.count(b"\n") == 1 for line in encoded)
    found = [json.loads(line) for line in encoded]
    if event == "stdout":
        assert "".join(piece["text"] for piece in found) == text
        return
    assert [piece["part"] for piece in found] == list(range(len(found)))
    assert [piece["last"] for piece in found] == [False] * (len(found) - 1) + [True]
    of_a = "".join(piece["piece"] for piece in found if piece["mime"] == "a")
    of_b = "".join(piece["piece"] for piece in found if piece["mime"] == "b" and piece["json"])
    assert (of_a, json.loads(of_b)) == (text, [text])


def test_what_fits_stays_whole(lines: Any) -> None:
    event = {"event": "result", "run": "r", "main": True, "data": {"text/plain": "x" * 200_000}}
    assert list(lines.pieces(event)) == [event]


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7))
def test_lines_are_found_however_they_are_cut(found: list[bytes], step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLACE))
        reader = importlib.import_module("bellglass_kernels.lines").Lines()
    wanted = [line.replace(b"\n", b"") for line in found]
    data = b"".join(line + b"\n" for line in wanted)
    assert [line for start in range(0, len(data), step) for line in reader.feed(data[start : start + step])] == wanted


def test_a_slow_reader_holds_nothing_up(lines: Any) -> None:
    read, write = os.pipe()
    try:
        writer = lines.Writer(write)
        events = [{"event": "stdout", "run": "r", "text": "x" * 10_000, "n": number} for number in range(200)]
        for event in events:
            writer.send(event)
        assert writer.is_behind
        got = b""
        while writer.waiting_bytes:
            got += os.read(read, 65536)
            writer.flush()
        os.close(write)
        while piece := os.read(read, 65536):
            got += piece
        assert [json.loads(line) for line in got.splitlines()] == events and not writer.is_behind
    finally:
        os.close(read)
