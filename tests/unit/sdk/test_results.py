"""Results as JSON, text over cuts, and what fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bellglass import ExecResult, InvalidRequest, OutputInvalid
from bellglass.sdk._results import Collector, TextStreams, decode
from bellglass.wire.output import OutputEvent, OutputType


def result(stdout: bytes, *, limit: int = 1 << 20, **record: Any) -> ExecResult:
    collector = Collector(limit)
    for start in range(0, len(stdout), 1000):
        collector.feed(OutputEvent(OutputType.STDOUT, start, stdout[start : start + 1000]))
    return collector.result("0" * 26, {"exit_code": 0, **record})


def reason(stdout: bytes, *, limit: int = 1 << 20, **options: Any) -> str:
    with pytest.raises(OutputInvalid) as caught:
        result(stdout, limit=limit).json(**options)
    assert caught.value.details["reason"] in str(caught.value)
    return str(caught.value.details["reason"])


def test_json() -> None:
    assert result(b'{"a": [1, 2.5, null, "\xc3\xa9"]}\n').json() == {"a": [1, 2.5, None, "é"]}
    assert result(b"3", exit_code=1).json() == 3


def test_reasons() -> None:
    assert reason(b"") == "not_json"
    assert reason(b"{") == "not_json"
    assert reason(b"1 2") == "not_json"
    assert reason(b'{"a": NaN}') == "not_json"
    assert reason(b"[" * 100_000) == "not_json"
    assert reason(b"1" * 10_000) == "not_json"  # past Python's limit for whole numbers
    assert reason(b'"\xff"') == "not_utf8"
    assert result(b"12345").json(max_bytes=5) == 12345
    assert reason(b"123456", max_bytes=5) == "too_large"
    assert reason(json.dumps("x" * 5000).encode(), limit=1000) == "truncated"


def test_schema() -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 0}}}
    assert result(b'{"n": 3}').json(schema=schema) == {"n": 3}
    for wrong in (b'{"n": -1}', b'{"n": "3"}', b"{}", b"[]"):
        assert reason(wrong, schema=schema) == "schema"
    assert result(b"1").json(schema=True) == 1
    assert reason(b"1", schema=False) == "schema"
    with pytest.raises(InvalidRequest, match="schema"):
        result(b"1").json(schema={"type": "nonsense"})
    with pytest.raises(InvalidRequest, match="schema"):
        result(b"1").json(schema={"$ref": "http://127.0.0.1:1/never-fetched.json"})
    with pytest.raises(OutputInvalid) as caught:
        result(b'{"n": -1}').json(schema=schema)
    assert "$.n" in str(caught.value)


def test_text_where_bytes_were_left_out() -> None:
    text = "é" * 5000
    kept = result(text.encode(), limit=1001)
    assert kept.truncated and "\ufffd" not in kept.stdout
    assert set(kept.stdout) == {"é"} and len(kept.stdout_raw) == 1000
    for cut in range(1, 12):
        assert "\ufffd" not in decode("☕€é𝄞".encode()[:cut] + "☕€é𝄞".encode()[-7:], cut)


def test_streams_keep_their_cut_characters_apart() -> None:
    streams = TextStreams()
    pieces = [(OutputType.STDOUT, b"\xe2\x98"), (OutputType.STDERR, b"\xc3"), (OutputType.STDOUT, b"\x95a"), (
        OutputType.STDERR, b"\xa9")]  # fmt: skip
    chunks = [streams.chunk(OutputEvent(type, 0, data)) for type, data in pieces]
    assert [chunk.text for chunk in chunks] == ["", "", "☕a", "é"]
    assert streams.last() == []
    streams.chunk(OutputEvent(OutputType.STDOUT, 0, b"\xe2\x98"))
    (last,) = streams.last()
    assert (last.stream, last.text) == ("stdout", "\ufffd")


def test_outcomes() -> None:
    assert result(b"").ok
    assert not result(b"", exit_code=1).ok
    assert not result(b"", exit_code=137, signal="SIGKILL", oom_killed=True).ok
    assert not result(b"", exit_code=None).ok, "an outcome that is missing is no success"
    assert "timed_out" in repr(result(b"", exit_code=137, timed_out=True))
