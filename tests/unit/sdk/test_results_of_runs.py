"""What code showed, as its users get it: each property has a value of its kind, whatever the sandbox put there."""

from __future__ import annotations

import base64

import pytest

from bellglass.sdk._runs import Result, RunCollector

GOOD = {
    "text": ("text/plain", "a", "a"), "html": ("text/html", "<b>", "<b>"), "markdown": ("text/markdown", "*", "*"),
    "svg": ("image/svg+xml", "<svg/>", "<svg/>"), "latex": ("text/latex", "$", "$"),
    "javascript": ("application/javascript", "1", "1"), "chart": ("chart", {"a": 1}, {"a": 1}),
    "frame": ("data", {"a": [1]}, {"a": [1]}), "png": ("image/png", base64.b64encode(b"p").decode(), b"p"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_value_of_another_kind_is_none(name: str) -> None:
    mime, value, expected = GOOD[name]
    assert getattr(Result(True, {mime: value}), name) == expected
    for wrong in (7, None, True, [], ["a"], 1.5):
        assert getattr(Result(True, {mime: wrong}), name) is None


@pytest.mark.parametrize("text", ["[1e999]", "[NaN]", "[" * 5000, "["])
def test_json_in_pieces_that_is_none_is_its_text(text: str) -> None:
    piece = {"type": "result", "main": True, "mime": "chart", "json": True, "part": 0, "last": True}
    good = RunCollector("python").feed(piece | {"piece": '{"a": 1}'})
    assert good is not None and good.chart == {"a": 1}
    bad = RunCollector("python").feed(piece | {"piece": text})
    assert bad is not None and bad.data == {"chart": text} and bad.chart is None
