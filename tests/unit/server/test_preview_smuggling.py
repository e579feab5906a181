"""What two readers could read in two ways: refused from visitors, and never shown of what programs say."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import h11
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preview_rig import CHUNKED, Program, Site, answer, program, public, silent
from server_harness import Harness

from bellglass import http1
from bellglass.http1 import BadHead
from bellglass.server.previews import head

POST = b"POST / HTTP/1.1\r\nHost: {host}\r\n"
BAD_REQUESTS = {
    "absolute form": b"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "absolute form of another": b"GET http://evil.test/ HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "CONNECT": b"CONNECT {host}:80 HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n",
    "length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "the same length twice": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "another coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding with a tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": b"POST / HTTP/1.0\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded line": b"GET / HTTP/1.1\r\nHost: {host}\r\nX: a\r\n b\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding : chunked\r\n\r\n",
    "a bare line feed": b"GET / HTTP/1.1\r\nHost: {host}\r\nX: a\nY: b\r\n\r\n",
    "a bare return": b"GET / HTTP/1.1\r\nHost: {host}\r\nX: a\rY: b\r\n\r\n",
    "a NUL": b"GET / HTTP/1.1\r\nHost: {host}\r\nX: a\0\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "no target": b"GET HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "another version": b"GET / HTTP/2.0\r\nHost: {host}\r\n\r\n",
    "a long head": b"GET / HTTP/1.1\r\nHost: {host}\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    "many fields": b"GET / HTTP/1.1\r\nHost: {host}\r\n" + b"X: a\r\n" * 300 + b"\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(harness: Harness, api: httpx2.Client) -> Iterator[tuple[Site, Program]]:
    with program() as shown:
        yield public(harness, api, shown.port), shown


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_what_could_be_read_in_two_ways_is_refused(plain: tuple[Site, Program], name: str) -> None:
    site, shown = plain
    assert site.get("/").status == 200
    before = len(shown.heads)
    with site.visitor() as visitor:
        visitor.send(BAD_REQUESTS[name].replace(b"{host}", site.host.encode()) + visitor.request("/smuggled"))
        assert visitor.read().status == 400
        assert visitor.ended()
    assert len(shown.heads) == before


NO_CHUNKS = [
    b"x\r\n\r\n", b"-1\r\n", b"3\r\nabcd\r\n", b"3\nabc\r\n", b"\r\n", b"3;a\nb\r\nabc\r\n", b"0\r\n X: a\r\n\r\n",
    b"fffffffffffffffff\r\n", b"0x3\r\nabc\r\n", b"3;\0\r\nabc\r\n", b"0\r\n" + b"X: a\r\n" * 257 + b"\r\n", b"3\r\nab",
]  # fmt: skip


@pytest.mark.parametrize("body", NO_CHUNKS)
def test_chunks_that_are_none(harness: Harness, api: httpx2.Client, body: bytes) -> None:
    with program(silent) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            visitor.send(visitor.request("/", "Transfer-Encoding: chunked", method="POST") + body)
            visitor.connection.shutdown(socket.SHUT_WR)
            try:
                assert visitor.read().status == 400
            except EOFError:
                assert body == b"3\r\nab", "the visitor has gone: nobody is there to be answered"
            assert visitor.ended()


BAD_ANSWERS = [
    b"", b"HTTP/1.1 200", b"hello\r\n\r\n", b"HTTP/2 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", b"HTTP/1.1 200 OK\nX: y\n\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("said", BAD_ANSWERS, ids=range(len(BAD_ANSWERS)))
def test_answers_that_are_none_are_a_502_and_nothing_of_them_is_shown(
    harness: Harness, api: httpx2.Client, said: bytes
) -> None:
    with program(answer(said)) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            for _ in range(2):
                answered = visitor.ask("/", "Accept: text/html")
                assert answered.status == 502 and b"502 Bad Gateway" in answered.body
        assert len(shown.heads) == 2


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        CHUNKED + b"5\r\nshort\r\n",
        CHUNKED + b"5\r\nshort\r\nzz\r\n",
    ],
)
def test_an_answer_that_breaks_off_does_not_look_whole(harness: Harness, api: httpx2.Client, said: bytes) -> None:
    with program(answer(said)) as shown:
        with public(harness, api, shown.port).visitor() as visitor:
            with pytest.raises((EOFError, ConnectionResetError, ValueError)):
                visitor.ask("/")


PIECES = st.sampled_from(
    [b"GET", b"POST", b" ", b"/", b"/a?b", b"*", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", b"\r", b"Host: a", b":",
     b"Host: b", b"Content-Length: 3", b"Content-Length: 4", b"Transfer-Encoding: chunked", b"Transfer-Encoding: x",
     b"Connection: close", b"\t", b"\0", b"X: y", b"\x80", b"http://a/", b",", b"chunked"]
)  # fmt: skip
HEADS = st.one_of(
    st.binary(max_size=200),
    st.lists(PIECES, max_size=20).map(b"".join),
    st.lists(PIECES, max_size=6).map(lambda lines: b"GET / HTTP/1.1\r\nHost: a\r\n" + b"\r\n".join(lines)),
)


@settings(max_examples=600, deadline=None)
@given(HEADS)
def test_what_is_taken_is_read_alike_by_another_parser_and_when_it_is_written_anew(raw: bytes) -> None:
    raw = raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    try:
        request = head.parse_request(raw)
        length = http1.request_length(request)
    except BadHead:
        return
    for text in (raw, http1.write_request(request)):
        other = h11.Connection(h11.SERVER)
        other.receive_data(text)
        event = other.next_event()
        assert isinstance(event, h11.Request)
        assert (event.method, event.target) == (request.method, request.target)
        lowered = [(name.lower(), value) for name, value in request.headers]
        # h11 takes a coding's case away, and nothing else.
        assert [(name, value) for name, value in event.headers if name != b"transfer-encoding"] == [
            (name, value) for name, value in lowered if name != b"transfer-encoding"
        ]
        told = {name: value for name, value in event.headers}
        assert (told.get(b"transfer-encoding") == b"chunked") == (length == http1.CHUNKED)
        assert length == http1.CHUNKED or int(told.get(b"content-length", b"0")) == length


@settings(max_examples=400, deadline=None)
@given(HEADS.map(lambda raw: raw.replace(b"GET / HTTP/1.1", b"HTTP/1.1 200 OK")))
def test_any_answer_is_read_or_refused(raw: bytes) -> None:
    try:
        response = http1.parse_response(raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        length = http1.response_length(response.headers)
    except BadHead:
        return
    again = http1.parse_response(http1.write_response(response.status, response.reason, response.headers))
    assert again == response._replace(minor=1)
    assert http1.response_length(again.headers) == length
