"""Lines of a native run as E2B's: what their clients read, and what they stumble over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bellglass.server.compat.e2b.interpreter import stream
from bellglass.server.compat.e2b.interpreter.stream import Translation


def translated(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    made = Translation()
    raw = b"".join(part for line in lines for part in made.of(line))
    assert raw.isascii() and raw.endswith(b"\n") and b"\n\n" not in raw
    return [json.loads(line) for line in raw.decode().splitlines()]


def piece(mime: str, text: str, part: int, *, last: bool = False, is_json: bool = False) -> dict[str, Any]:
    return {"type": "result", "main": True, "mime": mime, "piece": text, "part": part, "last": last, "json": is_json}


END = {"type": "end", "status": "ok", "error": None}


def test_a_run_has_a_count_its_output_its_results_and_an_end() -> None:
    data = {"text/plain": "'abc'", "image/png": "aGk=", "chart": {"type": "line"}, "text/html": None, "x/y": 1}
    lines = translated(
        {"type": "started", "run_id": "r", "execution_count": 3, "state_lost": False, "offset": 1},
        {"type": "stdout", "text": "a\u2028\x85\n", "offset": 2},
        {"type": "result", "main": True, "data": data, "offset": 3},
        {"type": "result", "main": False, "data": {"text/plain": "5"}, "dropped": {"image/png": 9}, "offset": 3},
        {"type": "error", "name": "E", "value": "v", "traceback": "t", "offset": 4},
        {"type": "keepalive"},
        END,
    )
    assert lines[0] == {"type": "number_of_executions", "execution_count": 3}
    assert lines[1]["text"] == "a\u2028\x85\n" and lines[1]["timestamp"]
    assert lines[2] == {
        "type": "result", "is_main_result": True, "text": "abc", "png": "aGk=", "chart": {"type": "line"},
        "extra": {"x/y": 1},
    }  # fmt: skip
    assert lines[3] == {
        "type": "result", "is_main_result": False, "text": "5", "extra": {"dropped": {"image/png": 9}}
    }  # fmt: skip
    assert [line["type"] for line in lines[4:]] == ["error", "keepalive", "end_of_execution"]


def test_pieces_become_one_line_and_the_long_ones_go_through_as_they_come() -> None:
    made = Translation()
    first = b"".join(made.of(piece("image/png", "x" * 1000, 0)))
    assert len(first) > 1000, "it is not held"
    assert b"".join(made.of({"type": "keepalive"})) == b"", "not in the middle of a line"
    rest = [
        piece("image/png", 'y"\n', 1),
        piece("text/html", "<p>", 2),
        piece("chart", '{"a":', 3, is_json=True),
        piece("chart", "1}", 4, is_json=True),
        piece("text/plain", "'a", 5),
        piece("text/plain", "b'", 6, last=True),
    ]
    line = json.loads(first + b"".join(part for one in rest for part in made.of(one)))
    assert line == {
        "type": "result", "is_main_result": True, "png": "x" * 1000 + 'y"\n', "html": "<p>", "chart": {"a": 1},
        "text": "ab",
    }  # fmt: skip
    assert len(translated(piece("image/png", "a", 0, last=True), END)) == 2


def test_what_is_held_is_bounded_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_HELD", 300)
    lines = translated(
        piece("text/plain", "x" * 8, 0), piece("text/plain", "x" * 8, 1), piece("x/y", "z", 2, last=True)
    )
    assert lines[0]["extra"]["dropped"] == {"text/plain": 16} and "text" not in lines[0]
    assert lines[0]["extra"]["x/y"] == "z"


def held_by(made: Translation) -> int:
    return sum(len(mime) + sum(map(len, pieces)) + len(pieces) for mime, (_, pieces) in made._held.items())


@pytest.mark.parametrize("name", ["m{}" + "x" * 1000, "m{}", "text/plain"])
@pytest.mark.parametrize("text", ["", "x"])
def test_pieces_without_end_are_not_held_without_end(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """What a piece holds may be nothing, and its name as long as a line."""
    monkeypatch.setattr(stream, "MAX_HELD", 40_000)
    made = Translation()
    for number in range(10):
        assert list(made.of(piece(name.format(number), text, number))) is not None
    assert len(made._held) == (1 if name == "text/plain" else 10), "what is little is held"
    for number in range(5000):
        list(made.of(piece(name.format(number), text, number)))
    assert held_by(made) <= 40_000 and len(made._dropped) <= 64
    line = b"".join(made.of(piece("x/y", "", 0, last=True)))
    assert json.loads(b'{"a":1' + line) and len(line) < 200_000
    assert translated(piece("text/plain", "ok", 0, last=True))[0]["text"] == "ok"


def test_a_line_in_the_middle_of_a_result_breaks_none() -> None:
    lines = translated(piece("image/png", "half", 0), {"type": "stdout", "text": "t"}, END)
    assert [(line["type"], line.get("png"), line.get("text")) for line in lines] == [
        ("result", "half", None), ("stdout", None, "t"), ("end_of_execution", None, None)
    ]  # fmt: skip


def test_json_in_pieces_that_is_none_is_text_and_breaks_no_line() -> None:
    for text in ('{"a":\n"', "[NaN]", "[1e999]", "[" * 500 + "]" * 500):
        assert translated(piece("chart", text, 0, last=True, is_json=True), END)[0]["chart"] == text


@pytest.mark.parametrize(
    ("reason", "name"),
    [("restarted", "ContextRestarting"), ("deleted", "ExecutionAborted"), ("oom", "UnexpectedEndOfExecution")],
)
def test_a_kernel_that_died_is_an_error_of_its_own_name(reason: str, name: str) -> None:
    error = {"code": "kernel_died", "message": "it died", "details": {"reason": reason}}
    lines = translated(piece("image/png", "half", 0), {"type": "end", "status": "died", "error": error})
    assert lines[0]["png"] == "half"
    assert lines[1] == {"type": "error", "name": name, "value": "it died", "traceback": ""}
    assert lines[2] == {"type": "end_of_execution"}


def test_a_sandbox_that_ended_has_no_end_of_its_run() -> None:
    made = Translation()
    error = {"code": "sandbox_gone", "message": "gone", "details": {}}
    assert b"".join(made.of({"type": "end", "status": "lost", "error": error})) == b"" and made.gone
