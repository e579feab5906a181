"""DNS packets as the resolver reads them: what libraries send is understood, all else is refused or ignored."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.egress.resolver import wire

HEADER = struct.Struct("!HHHHHH")


def name(text: str) -> bytes:
    return b"".join(bytes([len(label)]) + label for label in text.encode().split(b".")) + b"\0"


def query(
    text: str = "api.example.com",
    *,
    type: int = wire.A,
    klass: int = wire.IN,
    flags: int = 0x0100,
    counts: tuple[int, int, int, int] = (1, 0, 0, 0),
    raw_name: bytes | None = None,
    more: bytes = b"",
) -> bytes:
    question = (name(text) if raw_name is None else raw_name) + struct.pack("!HH", type, klass)
    return HEADER.pack(0x1234, flags, *counts) + question + more


def opt(*, version: int = 0, options: bytes = b"", type: int = wire.OPT) -> bytes:
    return struct.pack("!BHHBBHH", 0, type, 4096, 0, version, 0x8000, len(options)) + options


def test_a_plain_question_is_read_and_answered() -> None:
    question = wire.parse(query("Api.EXAMPLE.com"))
    assert (question.name, question.type, question.klass) == ("api.example.com", wire.A, wire.IN)
    answer = question.answer(address=b"\xc6\x12\x00\x07", ttl=30)
    identifier, flags, *counts = HEADER.unpack_from(answer)
    assert (identifier, flags, counts) == (0x1234, 0x8180, [1, 1, 0, 0])
    assert answer[12:].startswith(name("Api.EXAMPLE.com")), "spelled as it was asked"
    assert answer.endswith(struct.pack("!HHHIH", 0xC00C, wire.A, wire.IN, 30, 4) + b"\xc6\x12\x00\x07")


def test_an_answer_without_a_record() -> None:
    answer = wire.parse(query(flags=0x0010)).answer(wire.NXDOMAIN)
    assert HEADER.unpack_from(answer) == (0x1234, 0x8090 | wire.NXDOMAIN, 1, 0, 0, 0)
    assert len(answer) == len(query())


def test_edns_is_answered_with_edns() -> None:
    answer = wire.parse(query(counts=(1, 0, 0, 1), more=opt(options=b"\0\x0a\0\x02ab"))).answer(address=b"\1\2\3\4")
    assert HEADER.unpack_from(answer)[2:] == (1, 1, 0, 1)
    assert answer.endswith(struct.pack("!BHHBBHH", 0, wire.OPT, wire.UDP_SIZE, 0, 0, 0, 0))
    with pytest.raises(wire.Malformed) as refused:
        wire.parse(query(counts=(1, 0, 0, 1), more=opt(version=1)))
    assert refused.value.answer.endswith(struct.pack("!BHHBBHH", 0, wire.OPT, wire.UDP_SIZE, 1, 0, 0, 0)), "BADVERS"


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(query(counts=(0, 0, 0, 0)), id="no question"),
        pytest.param(query(counts=(2, 0, 0, 0), more=name("b") + b"\0\1\0\1"), id="two questions"),
        pytest.param(query(counts=(1, 1, 0, 0)), id="an answer in it"),
        pytest.param(query(counts=(1, 0, 1, 0)), id="an authority in it"),
        pytest.param(query(counts=(1, 0, 0, 2), more=opt() * 2), id="two additional"),
        pytest.param(query(counts=(1, 0, 0, 1), more=opt(type=250)), id="TSIG"),
        pytest.param(query(counts=(1, 0, 0, 1)), id="OPT promised"),
        pytest.param(query(counts=(1, 0, 0, 1), more=opt(options=b"ab")[:-1]), id="OPT cut"),
        pytest.param(query(more=b"\0"), id="a byte behind"),
        pytest.param(query(counts=(1, 0, 0, 1), more=opt() + b"\0"), id="a byte behind OPT"),
        pytest.param(query(raw_name=b"\xc0\x0c"), id="compressed"),
        pytest.param(query(raw_name=b"\3api\xc0\x0c"), id="compressed behind a label"),
        pytest.param(query(raw_name=b"\x40" + b"a" * 64 + b"\0"), id="a label of 64"),
        pytest.param(query(raw_name=b"\x3f" + b"a" * 63), id="no end"),
        pytest.param(query(raw_name=(b"\x3f" + b"a" * 63) * 4 + b"\0"), id="a name of 257"),
        pytest.param(query(flags=0x0300), id="truncated"),
        pytest.param(HEADER.pack(1, 0, 1, 0, 0, 0), id="a header alone"),
        pytest.param(query(more=b"x" * 5000), id="too long"),
    ],
)
def test_what_is_no_single_question_is_refused(packet: bytes) -> None:
    assert wire.parse(query())
    with pytest.raises(wire.Malformed) as refused:
        wire.parse(packet)
    identifier, flags, *counts = HEADER.unpack(refused.value.answer)
    assert (identifier, flags & 0x800F, counts) == (
        struct.unpack("!H", packet[:2])[0], 0x8000 | wire.FORMERR, [0] * 4
    )  # fmt: skip


@pytest.mark.parametrize("opcode", [1, 2, 4, 5, 6, 15])
def test_other_operations_are_not_implemented(opcode: int) -> None:
    with pytest.raises(wire.Malformed) as refused:
        wire.parse(query(flags=opcode << 11))
    assert HEADER.unpack(refused.value.answer)[1] == 0x8080 | opcode << 11 | wire.NOTIMP


@pytest.mark.parametrize("packet", [b"", b"\x12", query()[:11], query(flags=0x8180)])
def test_what_is_no_query_is_ignored(packet: bytes) -> None:
    with pytest.raises(wire.Ignored):
        wire.parse(packet)


@pytest.mark.parametrize("type", [0, 41, 249, 250, 251, 252, 253, 254, 255])
def test_transfers_and_everything_are_not_plain(type: int) -> None:
    assert wire.parse(query(type=wire.A)).is_plain and wire.parse(query(type=65)).is_plain
    assert not wire.parse(query(type=type)).is_plain
    assert not wire.parse(query(klass=3)).is_plain and not wire.parse(query(klass=255)).is_plain


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\0", "."),
        (b"\3a.b\3com\0", "a\\046b.com"),
        (b"\4a\0b\n\0", "a\\000b\\010"),
        (b"\2\xc3\xa4\0", "\\195\\164"),
        (b"\3a b\0", "a\\032b"),
        (b"\1*\3com\0", "\\042.com"),
    ],
)
def test_bytes_that_no_host_name_has(raw: bytes, shown: str) -> None:
    """A dot inside a label must not become two labels: `a.b` of somebody else's zone."""
    question = wire.parse(query(raw_name=raw))
    assert question.name is None and question.shown() == shown
    assert question.answer(wire.NXDOMAIN)[12:] == raw + b"\0\1\0\1"


@given(st.binary(max_size=600))
def test_no_bytes_break_it(packet: bytes) -> None:
    try:
        question = wire.parse(packet)
    except wire.Ignored:
        return
    except wire.Malformed as error:
        assert error.answer[:2] == packet[:2]
        return
    assert question.answer(address=b"\1\2\3\4")[:2] == packet[:2]
    question.shown().encode("ascii")


labels = st.binary(min_size=1, max_size=63)


@given(st.lists(labels, min_size=1, max_size=4), st.binary(max_size=3), st.integers(0, 65535))
def test_every_name_comes_back_as_it_was(parts: list[bytes], behind: bytes, type: int) -> None:
    raw = b"".join(bytes([len(part)]) + part for part in parts) + b"\0"
    packet = query(raw_name=raw, type=type, more=behind)
    if len(raw) > 255 or behind:
        with pytest.raises(wire.Malformed):
            wire.parse(packet)
        return
    question = wire.parse(packet)
    assert question.answer()[12:] == packet[12:]
    if question.name is not None:
        assert question.name.encode().split(b".") == [part.lower() for part in parts]


@given(st.integers(0, 600), st.integers(0, 255), st.data())
def test_damaged_questions_break_nothing(cut: int, value: int, data: st.DataObject) -> None:
    packet = bytearray(query(counts=(1, 0, 0, 1), more=opt(options=b"\0\x0a\0\x02ab")))
    packet[data.draw(st.integers(0, len(packet) - 1))] = value
    test_no_bytes_break_it.hypothesis.inner_test(bytes(packet[:cut]))  # type: ignore[attr-defined]
