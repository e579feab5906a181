"""JSON of an attacker: what comes through can be written again by everybody, everything else is a ValueError."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.wire import untrusted
from bellglass.wire.untrusted import DEEPEST


def nested(deep: int, *, objects: bool = False) -> str:
    return '{"a":' * deep + "1" + "}" * deep if objects else "[" * deep + "]" * deep


@pytest.mark.parametrize("text", ["{}", "[1, 1.5, -0.0, null, true]", '"\\ud800"', "1e308", nested(DEEPEST), "12"])
def test_json_is_what_it_was(text: str) -> None:
    assert json.dumps(untrusted.parse(text), allow_nan=False) == json.dumps(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "{", '{"a":}', "NaN", "[Infinity]", "-Infinity", "1e999", '{"a": [-1e999]}', "9" * 5000),
        *(nested(DEEPEST + 1), nested(DEEPEST + 1, objects=True), "[" * 200_000, '{"a":' * 200_000),
        b"\xff\xfe",
    ],
)
def test_what_is_none_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        untrusted.parse(text)


@given(st.integers(1, 3 * DEEPEST), st.booleans())
def test_the_depth_does_not_depend_on_the_stack(deep: int, objects: bool) -> None:
    value = json.loads(nested(deep, objects=objects))
    assert untrusted.is_deep(value) == (deep > DEEPEST)
    assert sys.getrecursionlimit() // 5 > DEEPEST


@given(st.text(alphabet='[]{}",:0123456789.eE-+NaInfity', max_size=60))
def test_any_text_is_a_value_that_can_be_written_or_a_value_error(text: str) -> None:
    try:
        value = untrusted.parse(text)
    except ValueError:
        return
    json.dumps(value, allow_nan=False)
