"""First bytes of a client on a port that doesn't say what is spoken there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.egress.proxy.classify import HTTP, MAX_LINE_BYTES, RAW, TLS, TooLong, classify

HTTP_LINES = [
    b"GET / HTTP/1.1\r\n",
    b"get / http/1.1\r\n",
    b"PRI * HTTP/2.0\r\n",
    b"CONNECT evil.test:443 HTTP/1.1\r\n",
    b"CONNECT evil.test:443\r\n",
    b"FROBNICATE /x HTTP/1.1\r\n",
    b"FOO\t/x\tHTTP/1.1\r\n",
    b"FOO\x0b/x\x0bHTTP/1.1\n",
    b"GET /\r\nHost: evil.test\r\n\r\n",
    b"GET\t/\r\n",
    b"\r\n\r\nGET / HTTP/1.1\r\n",
    b" \t GET / HTTP/1.1\r\n",
    b"\nFOO / HTTP/1.1\n",
    b"POST " + b"/x" * 1000 + b" HTTP/1.1\r\n",
    b"FOO /\xff\xfe HTTP/1.1\r\n",
    b"*x / HTTP/1.0\r\n",
    b"PROXY TCP4 203.0.114.1 203.0.114.2 80 80\r\nGET / HTTP/1.1\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
]
RAW_STARTS = [
    b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"PING\r\n",
    b"get key\r\n",
    b"EHLO client.example\r\n",
    b"CONNECT\naccept-version:1.2\n",
    b"AMQP\x00\x00\x09\x01",
    b"\x10\x0e\x00\x04MQTT",
    b"<stream:stream>",
    b"A\x00\x00\x00\x01\x00",
    b"NICK me\r\nUSER me 0 * :me\r\n",
    b"(",
    b'{"id": 1}\n',
    b"\x15\x03\0\0\x01\0\0\0",  # MongoDB: a message of 789 bytes
    b"\x15\x01\0\0\x02\0\0\0",
    b"\x18\x03\0\0\x02\x01\0\0",
    b"\x94\0\x01\xa6status\x90",  # MessagePack-RPC
    b"\xff\xfb\x01\xff\xfb\x03",  # Telnet
    b"\x80\x2e\x01\x04\x01",
]
TLS_STARTS = [
    b"\x16",
    b"\x16\x03\x01",
    b"\x15\x03\x01\0\x02\x01\x5a",  # the warning user_canceled
    b"\x15\0\0\0\x02\x01\x5a",
    b"\x15\x03\x03\0\x01\x01",
    b"\x14\x03\x03\0\x01\x01",
    b"\x17\x03\x03\0\0",
    b"\x18\x03\x03\0\x03\x01\0\0",
    b"\x80\x2e\x01\x03\x01\0\x15",  # hellos in the form of SSL 2
    b"\x80\x2e\x01\0\x02\0\x15",
]


@pytest.mark.parametrize("line", HTTP_LINES)
def test_http_and_no_prefix_of_it_is_raw(line: bytes) -> None:
    assert classify(line) == HTTP
    for cut in range(1, len(line)):
        assert classify(line[:cut]) in (None, HTTP)


@pytest.mark.parametrize("start", RAW_STARTS)
def test_raw(start: bytes) -> None:
    assert classify(start) == RAW
    for cut in range(1, len(start)):
        assert classify(start[:cut]) in (None, RAW)


@pytest.mark.parametrize("start", TLS_STARTS)
def test_tls_and_what_servers_pass_over_in_front_of_it(start: bytes) -> None:
    assert classify(start) == TLS
    for cut in range(1, len(start)):
        assert classify(start[:cut]) in (None, TLS)


def test_a_line_without_end_is_held_up_to_a_size() -> None:
    assert classify(b"FOO " + b"x" * (MAX_LINE_BYTES - 4)) is None
    with pytest.raises(TooLong):
        classify(b"FOO " + b"x" * MAX_LINE_BYTES)
    with pytest.raises(TooLong):
        classify(b"\r\n" * MAX_LINE_BYTES)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_verdict_never_changes_with_more_bytes(data: bytes, more: st.DataObject) -> None:
    first = classify(data)
    later = classify(data + more.draw(st.binary(max_size=30)))
    if first is not None:
        assert later == first


@given(st.binary(max_size=20), st.sampled_from([b" ", b"\t", b"\x0b"]))
def test_whatever_has_http_in_its_first_line_is_never_raw(path: bytes, blank: bytes) -> None:
    line = b"METHOD" + blank + path.replace(b"\n", b"") + blank + b"HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    assert classify(line) == HTTP
