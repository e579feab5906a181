"""Heads of HTTP messages: what goes through, what it looks like then, and the ways of saying two things at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.egress.proxy.head import OtherHost, Response, request, response, trailers
from bellglass.http1 import CHUNKED, UNTIL_CLOSE, BadHead, chunk_size, write_request


def head(*lines: bytes, first: bytes = b"GET / HTTP/1.1", host: bytes | None = b"a.test") -> bytes:
    named = () if host is None else (b"Host: " + host,)
    return b"\r\n".join((first, *named, *lines)) + b"\r\n\r\n"


GOOD = head(b"Accept: */*")


def parsed(data: bytes):  # type: ignore[no-untyped-def]
    return request(data, "a.test", 80)


def test_a_plain_request_is_written_anew() -> None:
    found = parsed(b"GET /a%2Fb?x=%20 HTTP/1.1\r\nhOsT:  A.Test \r\nX-Y:\ta b\t\r\nEmpty:\r\n\r\n")
    assert write_request(found.plain) == b"GET /a%2Fb?x=%20 HTTP/1.1\r\nhOsT: A.Test\r\nX-Y: a b\r\nEmpty: \r\n\r\n"
    assert (found.plain.method, found.length, found.upgrade) == (b"GET", 0, False)


@pytest.mark.parametrize(
    ("first", "sent"),
    [
        (b"GET http://a.test/x?y HTTP/1.1", b"GET /x?y HTTP/1.1"),
        (b"GET HTTP://A.TEST:80/x HTTP/1.1", b"GET /x HTTP/1.1"),
        (b"GET http://a.test HTTP/1.1", b"GET / HTTP/1.1"),
        (b"GET http://a.test?q HTTP/1.1", b"GET /?q HTTP/1.1"),
        (b"GET http://a.test/x#frag HTTP/1.1", b"GET /x HTTP/1.1"),
        (b"OPTIONS * HTTP/1.1", b"OPTIONS * HTTP/1.1"),
        (b"OPTIONS http://a.test HTTP/1.1", b"OPTIONS * HTTP/1.1"),
        (b"GET //evil.test/x HTTP/1.1", b"GET //evil.test/x HTTP/1.1"),
        (b"PROPFIND /x HTTP/1.0", b"PROPFIND /x HTTP/1.0"),
        ("GET /é HTTP/1.1".encode(), "GET /é HTTP/1.1".encode()),
    ],
)
def test_targets(first: bytes, sent: bytes) -> None:
    assert write_request(parsed(head(first=first)).plain) == sent + b"\r\nHost: a.test\r\n\r\n"


@pytest.mark.parametrize(
    ("host", "port"), [(b"a.test", 80), (b"a.test:80", 80), (b"A.TEST", 8080), (b"a.test:8080", 8080)]
)
def test_hosts_that_are_meant(host: bytes, port: int) -> None:
    assert request(head(host=host), "a.test", port).length == 0


@pytest.mark.parametrize(
    "host",
    [b"evil.test", b"a.test:81", b"a.test:443", b"a.test.", b"a.test:", b"a.test:080", b"", b"x.a.test",
     b"a.test@evil.test", b"a.test, evil.test", b"a.test evil.test", b"a.test/evil", b"[::1]", b"203.0.114.5",
     b"evil.test#a.test"],
)  # fmt: skip
def test_another_host_is_told_as_such(host: bytes) -> None:
    assert parsed(head(host=b"a.test")).length == 0
    with pytest.raises(OtherHost) as caught:
        parsed(head(host=host))
    assert caught.value.host == host.decode()  # nothing in it that a terminal obeys
    if b"/" not in host:
        with pytest.raises(BadHead):
            parsed(head(first=b"GET http://%s/ HTTP/1.1" % host))


@pytest.mark.parametrize(
    "data",
    [
        head(host=None),
        head(b"Host: a.test"),
        head(b"Host: evil.test"),
        head(b"Host : a.test", host=None),
        head(b"Host:a.test\r\n evil.test", host=None),
        head(b"X: a\r\n\tfolded"),
        b"GET / HTTP/1.1\r\n Host: a.test\r\n\r\n",
        head(b" X: a"),
        head(b"X : a"),
        head(b"X a"),
        head(b": a"),
        head(b"X: a\nHost: evil.test"),
        head(b"X: a\rHost: evil.test"),
        head(b"X: a\x00b"),
        head(b"X\x00: a"),
        head(b"X: a\x7f"),
        head(*(b"X: a" for _ in range(256))),
        head(first=b"CONNECT a.test:80 HTTP/1.1"),
        head(first=b"connect a.test:80 HTTP/1.1"),
        head(first=b"PRI * HTTP/2.0", host=None),
        head(first=b"PRI * HTTP/1.1"),
        head(first=b"GET / HTTP/2.0"),
        head(first=b"GET / HTTP/0.9"),
        head(first=b"GET / HTTP/1.2"),
        head(first=b"GET / http/1.1"),
        head(first=b"GET /"),
        head(first=b"GET  / HTTP/1.1"),
        head(first=b"GET / x HTTP/1.1"),
        head(first=b"GET\t/\tHTTP/1.1"),
        head(first=b" GET / HTTP/1.1"),
        head(first=b"GET / HTTP/1.1 "),
        head(first=b"G@T / HTTP/1.1"),
        head(first=b"GET /\x01 HTTP/1.1"),
        head(first=b"GET a.test HTTP/1.1"),
        head(first=b"GET * HTTP/1.1"),
        head(first=b"GET https://a.test/ HTTP/1.1"),
        head(first=b"GET ftp://a.test/ HTTP/1.1"),
        head(first=b"GET http://user@a.test/ HTTP/1.1"),
        head(first=b"GET http://evil.test/ HTTP/1.1"),
        head(first=b"GET http:///a.test/ HTTP/1.1"),
        head(first=b"GET http://a.test\\@evil.test/ HTTP/1.1"),
        head(first=b"GET http://a.test%2eevil.test/ HTTP/1.1"),
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        head(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
        head(b"Content-Length: 5", b"Content-Length: 5"),
        head(b"Content-Length: 5", b"content-length: 6"),
        head(b"Content-Length: 5, 5"),
        head(b"Content-Length: +5"),
        head(b"Content-Length: -1"),
        head(b"Content-Length: 0x5"),
        head(b"Content-Length: 5 5"),
        head(b"Content-Length:"),
        head(b"Content-Length: \xb2"),
        head(b"Content-Length: " + b"9" * 19),
        head(b"Content-Length : 5"),
        head(b"Transfer-Encoding: gzip"),
        head(b"Transfer-Encoding: gzip, chunked"),
        head(b"Transfer-Encoding: chunked, chunked"),
        head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        head(b"Transfer-Encoding: identity"),
        head(b"Transfer-Encoding: xchunked"),
        head(b"Transfer-Encoding: \x0bchunked"),
        head(b"Transfer-Encoding:"),
        head(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0"),
        head(b"Connection: close, Host"),
        head(b"Connection: content-length", b"Content-Length: 5"),
        head(b"Connection: Transfer-Encoding", b"Transfer-Encoding: chunked"),
        head(b"Connection: upgrade", b"Upgrade: h2c"),
        head(b"Connection: upgrade", b"Upgrade: websocket, H2C"),
        head(b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c"),
        head(b"Connection: upgrade", b"Upgrade: TLS/1.0"),
        head(b"Connection: upgrade, HTTP2-Settings", b"Upgrade: x"),
        head(b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
        head(b"Connection: upgrade", b"Upgrade: websocket", b"Content-Length: 5"),
        head(b"Upgrade: x", b"Transfer-Encoding: chunked"),
    ],
)
def test_what_is_refused(data: bytes) -> None:
    assert parsed(GOOD).length == 0
    with pytest.raises(BadHead):
        parsed(data)


def test_framings_are_written_as_everybody_does() -> None:
    """A server that knows `Chunked` for no coding, or reads 010 as eight, would find a request in the body."""
    for told, sent in (
        (b"content-length:\t010", b"content-length: 10"),
        (b"Transfer-Encoding: Chunked", b"Transfer-Encoding: chunked"),
    ):
        assert write_request(parsed(head(told)).plain) == GOOD.replace(b"Accept: */*", sent)


def test_framings_and_upgrades_that_are_plain() -> None:
    assert parsed(head(b"Content-Length: 5")).length == 5
    assert parsed(head(b"Content-Length: 0")).length == 0
    assert parsed(head(b"transfer-encoding: Chunked")).length == CHUNKED
    assert parsed(head(b"Connection: Upgrade", b"Upgrade: websocket")).upgrade
    assert parsed(head(b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 0")).upgrade
    assert parsed(head(b"Connection: keep-alive, close")).length == 0


PIECES = [b"\r", b"\n", b" ", b"\t", b":", b"a", b"Host", b"a.test", b"evil.test", b"Content-Length", b"\x00", b","]
PIECES += [b"Transfer-Encoding", b"chunked", b"5", b"GET / HTTP/1.1"]


@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_what_passes_says_one_thing(pieces: list[bytes]) -> None:
    data = head(b"".join(pieces).replace(b"\r\n\r\n", b""))
    try:
        found = parsed(data)
    except BadHead:
        return
    written = write_request(found.plain)
    lines = written[:-4].split(b"\r\n")
    assert b"\r" not in b"".join(lines) and b"\n" not in b"".join(lines)
    keys = [line.partition(b":")[0].lower() for line in lines[1:]]
    assert keys.count(b"host") == 1
    assert keys.count(b"content-length") + keys.count(b"transfer-encoding") <= 1
    assert parsed(written) == found


@given(st.binary(max_size=200))
def test_random_bytes_never_pass(data: bytes) -> None:
    with pytest.raises(BadHead):
        parsed(data + b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", Response(200, 7)),
        (b"HTTP/1.1 200\r\nContent-Length: 7\r\n\r\n", Response(200, 7)),
        (b"HTTP/1.0 200 OK\r\n\r\n", Response(200, UNTIL_CLOSE)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Response(200, CHUNKED)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Response(200, UNTIL_CLOSE)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\n\r\n", Response(200, UNTIL_CLOSE)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 7\r\n\r\n", Response(200, 7)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 8\r\n\r\n", Response(200, UNTIL_CLOSE)),
        (b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 7\r\n\r\n", Response(200, UNTIL_CLOSE)),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n", Response(204, 0)),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", Response(304, 0)),
        (b"HTTP/1.1 100 Continue\r\n\r\n", Response(100, 0)),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", Response(101, 0)),
        (b"HTTP/1.1 999 Go Away\r\nContent-Length: 7\r\n\r\n", Response(999, 7)),
    ],
)
def test_responses(data: bytes, found: Response) -> None:
    assert response(data) == found


@pytest.mark.parametrize(
    "data", [b"\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 2000\r\n\r\n", b"hello\r\n\r\n", b"HTTP/1.1 099 x\r\n\r\n"]
)
def test_what_is_no_response(data: bytes) -> None:
    with pytest.raises(BadHead):
        response(data)


def test_chunk_sizes() -> None:
    assert [chunk_size(line) for line in (b"0", b"5", b"fF", b"5 ", b"5;a=b", b'5 ; a="b;c"', b"000A")] == [
        0,
        5,
        255,
        5,
        5,
        5,
        10,
    ]
    for line in (b"", b"g", b"0x5", b"-5", b"+5", b" 5", b"5 5", b"5;\x00", b"5;a\r", b"f" * 16, b"5,"):
        with pytest.raises(BadHead):
            chunk_size(line)


def test_trailers() -> None:
    assert trailers([]) == []
    assert trailers([b"Digest:  x", b"X-Y: z"]) == [(b"Digest", b"x"), (b"X-Y", b"z")]
    for line in (b"Host: evil.test", b"content-length: 5", b"X", b" X: y", b"Transfer-Encoding: chunked"):
        with pytest.raises(BadHead):
            trailers([b"X-Y: z", line])
