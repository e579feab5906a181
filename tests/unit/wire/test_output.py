"""Lines of NDJSON: characters put together, and offsets at which a reader may attach again."""

from __future__ import annotations

import base64
import json
from itertools import groupby
from operator import itemgetter

from hypothesis import given, settings
from hypothesis import strategies as st

from bellglass.wire.output import STREAM_NAMES, NdjsonEncoder, OutputEvent, OutputType

CHUNKS = st.lists(
    st.tuples(
        st.sampled_from([OutputType.STDOUT, OutputType.STDERR]),
        st.one_of(
            st.binary(min_size=1, max_size=12),
            st.sampled_from([b"\xe2", b"\x98", b"\x95", b"a\xc3", b"\xa9b", "é☕".encode()]),
        ),
    ),
    max_size=16,
)


class Reader:
    """A client that keeps, of each stream, the bytes that it has not had yet."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self.end: dict[str, int] = {"stdout": 0, "stderr": 0}
        self.next = 0

    def take(self, raw: bytes) -> None:
        for line in raw.splitlines():
            value = json.loads(line)
            name = value["stream"]
            if name in self.parts:
                data = value["text"].encode() if "text" in value else base64.b64decode(value["b64"])
                self.parts[name] += data[max(self.end[name] - value["offset"], 0) :]
                self.end[name] = max(self.end[name], value["offset"] + len(data))
            self.next = value.get("next", self.next)


def lines_from(chunks: list[tuple[OutputType, bytes]], offset: int) -> list[bytes]:
    encoder, position, lines = NdjsonEncoder(), 0, []
    if offset:  # a log that is read again gives neighbours of one stream as one chunk
        chunks = [(kind, b"".join(data for _, data in group)) for kind, group in groupby(chunks, itemgetter(0))]
    for kind, data in chunks:
        skip = max(offset - position, 0)
        if data[skip:]:
            lines += encoder.encode(OutputEvent(kind, position + skip, data[skip:])).splitlines(keepends=True)
        position += len(data)
    return lines + encoder.encode(OutputEvent(OutputType.EXIT, value={"exit_code": 0})).splitlines(keepends=True)


@given(CHUNKS, st.integers(0, 14))
@settings(max_examples=1000)
def test_a_reader_that_was_cut_attaches_at_next_and_misses_nothing(chunks, cut) -> None:
    reader = Reader()
    for line in lines_from(chunks, 0)[:cut]:
        reader.take(line)
    for line in lines_from(chunks, reader.next):
        reader.take(line)
    for kind, name in STREAM_NAMES.items():
        assert reader.parts[name] == b"".join(data for stream, data in chunks if stream is kind)


def test_a_character_cut_by_the_other_stream_stays_whole() -> None:
    out, err = OutputType.STDOUT, OutputType.STDERR
    lines = [json.loads(line) for line in lines_from([(out, b"a\xc3"), (err, b"E"), (out, b"\xa9b")], 0)]
    assert lines[:3] == [
        {"stream": "stdout", "offset": 0, "next": 1, "text": "a"},
        {"stream": "stderr", "offset": 2, "next": 1, "text": "E"},
        {"stream": "stdout", "offset": 1, "next": 5, "text": "éb"},
    ]
