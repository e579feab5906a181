"""Answers of DNS servers, among them those that a hostile name's owner would send."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.egress.proxy.dns import (
    AAAA,
    MAX_ADDRESSES,
    A,
    Answer,
    BadAnswer,
    ServerFailure,
    Truncated,
    answer,
    question,
)
from bellglass.egress.proxy.lookup import parse_hosts, parse_servers

NAME = "a.test"
QUERY = question(7, NAME, A)


def labels(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def record(owner: bytes, kind: int, data: bytes, ttl: int = 60, record_class: int = 1) -> bytes:
    return (
        owner
        + kind.to_bytes(2, "big")
        + record_class.to_bytes(2, "big")
        + ttl.to_bytes(4, "big")
        + len(data).to_bytes(2, "big")
        + data
    )


def message(
    *records: bytes, flags: int = 0x8180, query: bytes = QUERY, count: int | None = None, query_id: int = 7
) -> bytes:
    header = query_id.to_bytes(2, "big") + flags.to_bytes(2, "big") + b"\0\1"
    return (
        header
        + (len(records) if count is None else count).to_bytes(2, "big")
        + b"\0\0\0\0"
        + query[12:]
        + b"".join(records)
    )


POINTER = b"\xc0\x0c"
ADDRESS = b"\xcb\x00\x72\x05"
GOOD = message(record(POINTER, A, ADDRESS))


def read(data: bytes, kind: int = A) -> Answer:
    return answer(data, 7, NAME, kind)


def test_plain_answers() -> None:
    assert read(GOOD) == Answer((ip_address("203.0.114.5"),), 60)
    two = message(record(POINTER, A, ADDRESS, 60), record(labels("A.test"), A, b"\x08\x08\x08\x08", 30))
    assert read(two) == Answer((ip_address("203.0.114.5"), ip_address("8.8.8.8")), 30)
    six = message(record(POINTER, AAAA, ip_address("2a00::1").packed), query=question(7, NAME, AAAA))
    assert read(six, AAAA).addresses == (ip_address("2a00::1"),)
    assert read(message()).addresses == ()
    assert read(message(flags=0x8183)).addresses == ()
    assert read(message(record(POINTER, A, ADDRESS, 2**31))).ttl_s == 0


def test_aliases_are_followed_within_the_answer() -> None:
    chain = message(
        record(labels("c.test"), A, ADDRESS, 50),
        record(POINTER, 5, labels("b.test"), 40),
        record(labels("b.test"), 5, labels("c.test"), 30),
        record(labels("evil.test"), A, b"\x08\x08\x08\x08"),
    )
    assert read(chain) == Answer((ip_address("203.0.114.5"),), 30)
    circle = message(record(POINTER, 5, labels("b.test")), record(labels("b.test"), 5, labels("a.test")))
    assert read(circle).addresses == ()
    stranger = message(record(labels("evil.test"), A, ADDRESS))
    assert read(stranger).addresses == ()


def test_no_more_addresses_than_a_bound() -> None:
    many = message(*(record(POINTER, A, bytes([8, 8, 8, n])) for n in range(200)))
    assert len(read(many).addresses) == MAX_ADDRESSES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:11],
        GOOD[:-1],
        message(record(POINTER, A, ADDRESS), query_id=8),
        message(record(POINTER, A, ADDRESS), flags=0x0180),
        message(record(POINTER, A, ADDRESS), flags=0x8980),
        message(record(POINTER, A, ADDRESS), query=question(7, "b.test", A)),
        message(record(POINTER, A, ADDRESS), query=question(7, NAME, AAAA)),
        message(record(POINTER, A, ADDRESS), count=2),
        message(record(POINTER, A, ADDRESS[:3])),
        message(record(POINTER, A, ADDRESS + b"x")),
        message(record(b"\xc0\xff", A, ADDRESS)),
        message(record(b"\xc0\x1d", A, ADDRESS)),
        message(record(b"\x40a\0", A, ADDRESS)),
        message(record(labels(".".join(["a" * 60] * 5)), A, ADDRESS)),
        message(record(POINTER, 5, b"\xc0\xc0")),
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    assert read(GOOD).addresses
    with pytest.raises(BadAnswer):
        read(data)


def test_failures_and_truncation() -> None:
    with pytest.raises(ServerFailure):
        read(message(flags=0x8182))
    with pytest.raises(Truncated):
        read(message(flags=0x8380))


def test_a_dot_inside_a_label_is_no_border() -> None:
    tricky = message(record(b"\x06a.test\0", A, ADDRESS))
    assert read(tricky).addresses == ()


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    for made in (data, QUERY[:2] + b"\x81\x80\0\1\0\3\0\0\0\0" + QUERY[12:] + data):
        try:
            found = read(made)
        except (BadAnswer, ServerFailure, Truncated):
            continue
        assert len(found.addresses) <= MAX_ADDRESSES


def test_files_of_the_host() -> None:
    hosts = parse_hosts(
        "# x\n127.0.0.1 localhost\n8.8.8.8\tA.test b.test # c.test\nbad a.test\n::1 a.test\n8.8.8.9 1.2.3.4\n\n"
    )
    assert hosts == {
        "localhost": [ip_address("127.0.0.1")],
        "a.test": [ip_address("8.8.8.8"), ip_address("::1")],
        "b.test": [ip_address("8.8.8.8")],
    }
    text = "search x\nnameserver 8.8.8.8\nnameserver ::1 # y\n#nameserver 1.1.1.1\nnameserver bad\n"
    assert parse_servers(text) == [ip_address("8.8.8.8"), ip_address("::1")]
