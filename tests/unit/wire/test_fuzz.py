"""Whatever bytes come, the readers and decoders give frames, values or FrameError, and hold no more than one frame."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellglass.wire import guest, tlv
from bellglass.wire.frames import HEADER_SIZE, MAX_PAYLOAD, FrameError, FrameReader, encode

FIELDS = st.lists(
    st.tuples(st.integers(0, 14), st.one_of(st.binary(max_size=40), st.integers(0, 2**64 - 1), st.text(max_size=20))),
    max_size=12,
)
DECODERS = [
    guest.decode_hello,
    guest.decode_exit,
    guest.decode_failure,
    guest.decode_pid,
    guest.decode_stat,
    guest.decode_result,
    guest.decode_offset,
    tlv.parse,
]


def quiet(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_reader_of_garbage(pieces) -> None:
    reader = FrameReader()
    try:
        for piece in pieces:
            for frame in reader.feed(piece):
                assert len(frame.payload) <= MAX_PAYLOAD
            assert reader.pending_bytes <= MAX_PAYLOAD + HEADER_SIZE + 300
    except FrameError:
        return


@given(
    st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=500)), max_size=20), st.data()
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames, data) -> None:
    raw = b"".join(encode(kind, stream, payload) for kind, stream, payload in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    reader, seen = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        seen += [(f.type, f.stream, bytes(f.payload)) for f in reader.feed(raw[start:end])]
    assert seen == frames and reader.pending_bytes == 0


@pytest.mark.parametrize("decode", DECODERS)
@given(payload=st.binary(max_size=400))
@settings(max_examples=200)
def test_decoders_of_garbage(decode, payload) -> None:
    try:
        decode(payload)
    except FrameError:
        return


@pytest.mark.parametrize("decode", DECODERS)
@given(fields=FIELDS)
@settings(max_examples=200)
def test_decoders_of_wrong_fields(decode, fields) -> None:
    payload = b"".join(tlv.put(tag, quiet(value) if isinstance(value, str) else value) for tag, value in fields)
    try:
        decode(payload)
    except FrameError:
        return


@pytest.mark.parametrize("kind", ["f", "d", "", "x", "fd", "\ud800"])
def test_a_file_has_one_type_of_those_that_there_are(kind: str) -> None:
    payload = tlv.put(1, "name") + tlv.put(2, kind.encode("utf-8", "surrogatepass"))
    if kind in ("f", "d", "fd"):
        assert guest.decode_stat(payload).type == kind[0]
        return
    with pytest.raises(FrameError):
        guest.decode_stat(payload)


@given(FIELDS)
def test_fields_round_trip(fields) -> None:
    fields = [(tag, quiet(value) if isinstance(value, str) else value) for tag, value in fields]
    parsed = tlv.parse(b"".join(tlv.put(tag, value) for tag, value in fields))
    assert sum(len(values) for values in parsed.values()) == len(fields)
