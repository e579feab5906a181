"""ClientHellos: those of a real TLS library in every cut and fragmentation, and what an attacker would make of them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.egress.proxy.tls import (
    MAX_HELLO_BYTES,
    MAX_LOOK_BYTES,
    BadHello,
    Hello,
    NoServerName,
    Reading,
    parse,
)


def real_hello(name: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """The first flight of OpenSSL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


REAL = real_hello("api.example.com")


def fragmented(hello: bytes, *sizes: int) -> bytes:
    """The same message in records of these sizes, the last one with the rest."""
    message, made = hello[5:], b""
    for size in (*sizes, len(message)):
        piece, message = message[:size], message[size:]
        if piece:
            made += b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece
    return made


def vector(data: bytes, size: int) -> bytes:
    return len(data).to_bytes(size, "big") + data


def server_name(*names: bytes, kind: int = 0) -> tuple[int, bytes]:
    return 0, vector(b"".join(bytes([kind]) + vector(name, 2) for name in names), 2)


def made(
    *extensions: tuple[int, bytes],
    version: bytes = b"\x03\x03",
    session: bytes = b"",
    suites: bytes = b"\x13\x01",
    compression: bytes = b"\0",
    behind: bytes = b"",
    kind: int = 1,
) -> bytes:
    body = version + bytes(32) + vector(session, 1) + vector(suites, 2) + vector(compression, 1)
    if extensions:
        body += vector(b"".join(number.to_bytes(2, "big") + vector(data, 2) for number, data in extensions), 2)
    message = bytes([kind]) + vector(body + behind, 3)
    return b"\x16\x03\x01" + vector(message, 2)


GOOD = server_name(b"api.example.com")
ALPN, ECH = (16, vector(vector(b"h2", 1), 2)), (0xFE0D, b"\0" * 40)


def test_real_hellos() -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        hello = real_hello("API.example.com", version)
        assert parse(hello) == Hello("api.example.com", len(hello))
        assert parse(memoryview(hello + b"\x17\x03\x03\0\1x")) == Hello("api.example.com", len(hello))
        with pytest.raises(NoServerName):
            parse(real_hello(None, version))
        with pytest.raises(NoServerName):
            parse(real_hello("203.0.114.5", version))  # addresses are never sent as a name


@given(st.integers(0, len(REAL) - 1))
def test_a_hello_that_is_cut_asks_for_more_than_there_is(cut: int) -> None:
    needed = parse(REAL[:cut])
    assert isinstance(needed, int) and cut < needed <= len(REAL)


@given(st.lists(st.integers(1, 120), max_size=30), st.integers(0, 700))
def test_a_hello_in_fragments_is_the_same(sizes: list[int], cut: int) -> None:
    hello = fragmented(REAL, *sizes)
    assert parse(hello) == Hello("api.example.com", len(hello))
    if cut < len(hello):
        needed = parse(hello[:cut])
        assert isinstance(needed, int) and cut < needed <= len(hello)


@given(st.binary(max_size=400))
def test_random_bytes_are_no_hello(data: bytes) -> None:
    for stream in (data, b"\x16\x03\x01" + data, REAL[:100] + data):
        try:
            found = parse(stream)
        except BadHello:
            continue
        assert isinstance(found, int) or stream[: len(REAL)] == REAL or found.length <= len(stream)


@given(st.integers(0, len(REAL) - 1), st.integers(1, 255))
def test_a_changed_byte_never_makes_another_name_pass_as_ours(at: int, change: int) -> None:
    """Whatever is read is in the bytes, where a server reads it."""
    hello = bytearray(REAL)
    hello[at] ^= change
    try:
        found = parse(bytes(hello))
    except BadHello:
        return
    if isinstance(found, Hello):
        assert found.name.encode() in bytes(hello).lower()


@pytest.mark.parametrize(
    "make",
    [
        lambda: made(GOOD, ALPN),
        lambda: made(ALPN, GOOD, ECH),
        lambda: made(GOOD, version=b"\x03\x01"),
        lambda: made(GOOD, session=bytes(32)),
        lambda: made(GOOD, (21, bytes(MAX_HELLO_BYTES - 100))),
    ],
)
def test_odd_but_good(make: Callable[[], bytes]) -> None:
    hello = make()
    assert parse(hello) == Hello("api.example.com", len(hello))


@pytest.mark.parametrize(
    "make",
    [
        lambda: made(ALPN),
        lambda: made(),
        lambda: made(server_name()),
        lambda: made(server_name(b"")),
        lambda: made(server_name(b"api.example.com", b"evil.test")),
        lambda: made(server_name(b"api.example.com", b"api.example.com")),
        lambda: made(server_name(b"api.example.com", kind=1)),
        lambda: made(GOOD, server_name(b"evil.test")),
        lambda: made(GOOD, GOOD),
        lambda: made(GOOD, ALPN, ALPN),
        lambda: made((0, GOOD[1] + b"\0")),
        lambda: made((0, b"\0\xff" + GOOD[1][2:])),
        lambda: made((0, b"")),
        lambda: made(server_name("bücher.example".encode())),
        lambda: made(GOOD, version=b"\x03\x00"),
        lambda: made(GOOD, version=b"\x02\x00"),
        lambda: made(GOOD, version=b"\xfe\xfd"),
        lambda: made(GOOD, session=bytes(33)),
        lambda: made(GOOD, suites=b""),
        lambda: made(GOOD, suites=b"\x13"),
        lambda: made(GOOD, compression=b""),
        lambda: made(GOOD, behind=b"\0"),
        lambda: made(GOOD, kind=2),
        lambda: made(GOOD, (21, bytes(MAX_HELLO_BYTES))),
        lambda: b"\x17" + made(GOOD)[1:],
        lambda: b"\x16\x02" + made(GOOD)[2:],
        lambda: b"\x16\x03\x00" + made(GOOD)[3:],
        lambda: b"\x16\x03\x01\0\0" + made(GOOD),
        lambda: fragmented(made(GOOD), 10)[:15] + b"\x17\x03\x01\0\1x" + fragmented(made(GOOD), 10)[15:],
        lambda: b"\x16\x03\x01" + vector(made(GOOD)[5:] + b"\x01\0\0\0", 2),
        lambda: b"\x16\x03\x01" + vector(made(GOOD)[5:] + made(server_name(b"evil.test"))[5:], 2),
        lambda: fragmented(made(GOOD, (21, bytes(8000))), *([1] * (MAX_LOOK_BYTES // 6 + 1))),
        lambda: b"\x80\x2e\x01\x03\x01" + bytes(40),
        lambda: b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_refused(make: Callable[[], bytes]) -> None:
    assert isinstance(parse(made(GOOD, ALPN)), Hello)
    with pytest.raises(BadHello):
        parse(make())


def test_early_data_is_told() -> None:
    assert parse(made(GOOD, (42, b""))).early_data  # type: ignore[union-attr]
    assert not parse(made(GOOD, ALPN)).early_data  # type: ignore[union-attr]


def test_the_name_is_told_where_the_hello_is_good() -> None:
    assert parse(made(server_name(b"Evil.TEST"))) == Hello("evil.test", len(made(server_name(b"evil.test"))))
    assert parse(made(server_name(b"api.example.com.")))[0] == "api.example.com."  # type: ignore[index]


def test_a_hello_that_comes_in_bytes_costs_no_more_than_its_bytes() -> None:
    """All sandboxes share one process: what one sends in the smallest pieces must not hold it up."""
    message = made(GOOD, (21, bytes(5000)))
    stream = fragmented(message, *([1] * len(message)))
    reading, at, began = Reading(), 0, time.process_time()
    while isinstance(step := reading.go_on(stream[:at]), int):
        assert step > at
        at = step
    assert step == Hello("api.example.com", len(stream))
    assert time.process_time() - began < 1  # read from its start each time it takes ten seconds and more
