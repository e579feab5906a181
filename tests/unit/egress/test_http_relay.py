"""Whole connections through the relay of HTTP, over real sockets: whatever a client sends, a server that reads it sees
one host alone. The server's reader is another parser (h11), and one that takes every liberty that a server might.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bellglass.egress.loop import Task
from bellglass.egress.proxy.http import Exchange
from bellglass.egress.proxy.relay import Counter, Ended
from bellglass.http1 import BadHead
from tests.unit.egress.conftest import LoopThread


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for sock in (one, other):
        sock.settimeout(20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


class Relay:
    """A client's socket and a server's, with the exchange between them in the loop's thread."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self.client, self._inner = tcp_pair()
        self.server, self._outer = tcp_pair()
        self.error: Exception | None = None
        for sock in (self._inner, self._outer):
            sock.setblocking(False)
        loop = thread.loop
        self._exchange = Exchange(loop, self._inner, self._outer, "a.test", 80, Counter(), Counter())
        self._tasks: list[Task] = []
        thread.call(
            lambda: self._tasks.extend([loop.spawn(self._requests(), "sb1"), loop.spawn(self._responses(), "sb1")])
        )

    async def _requests(self) -> None:
        try:
            await self._exchange.requests()
        except (BadHead, Ended, OSError) as error:
            self.error = error
        with contextlib.suppress(OSError):
            self._outer.shutdown(socket.SHUT_WR)

    async def _responses(self) -> None:
        with contextlib.suppress(BadHead, Ended, OSError):
            await self._exchange.responses()

    def received(self) -> bytes:
        """All that the server gets, once the client has ended its stream."""
        data = b""
        while piece := self.server.recv(65536):
            data += piece
        return data

    def close(self) -> None:
        def end() -> None:
            for task in self._tasks:
                task.cancel()
            for sock in (self._inner, self._outer):
                self._thread.loop.close(sock)

        self._thread.call(end)
        self.client.close()
        self.server.close()


@pytest.fixture(scope="module")
def loop_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopThread]:
    running = LoopThread(tmp_path_factory.mktemp("loop"))
    yield running
    running.stop()


def through(thread: LoopThread, pieces: list[bytes]) -> tuple[bytes, Exception | None]:
    """What the server gets of a client that sends these and ends."""
    relay = Relay(thread)
    try:
        with contextlib.suppress(OSError):
            for piece in pieces:
                relay.client.sendall(piece)
            relay.client.shutdown(socket.SHUT_WR)
        return relay.received(), relay.error
    finally:
        relay.close()


def hosts_seen(data: bytes) -> list[bytes]:
    """Of every request, as h11 reads the stream. What it can't read further it doesn't serve."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    server.receive_data(b"")
    hosts: list[bytes] = []
    try:
        while True:
            event = server.next_event()
            if isinstance(event, h11.Request):
                hosts += [value for name, value in event.headers if name == b"host"]
            if isinstance(event, h11.EndOfMessage):
                server.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
                server.send(h11.EndOfMessage())
                if server.our_state is h11.MUST_CLOSE:
                    return hosts
                server.start_next_cycle()
            if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return hosts
    except h11.ProtocolError:
        return hosts


def hosts_seen_otherwise(data: bytes) -> list[bytes]:
    """The same by a server that takes liberties: lines may end in LF alone, a length counts before chunks do, and the
    last of several."""
    hosts: list[bytes] = []
    while match := re.search(rb"\r?\n\r?\n", data):
        lines = re.split(rb"\r?\n", data[: match.start()])
        data = data[match.end() :]
        fields = [line.partition(b":") for line in lines[1:]]
        named = {name.strip().lower(): value.strip() for name, _, value in fields}
        hosts += [value.strip() for name, _, value in fields if name.strip().lower() == b"host"]
        if (length := named.get(b"content-length", b"")).isdigit():
            data = data[int(length) :]
        elif b"chunked" in named.get(b"transfer-encoding", b"").lower():
            while chunk := re.match(rb"([0-9a-fA-F]+)[^\n]*\n", data):
                data = data[chunk.end() :]
                if not (size := int(chunk[1], 16)):
                    data = data[trailers.end() :] if (trailers := re.match(rb"(?:[^\r\n]+\r?\n)*\r?\n", data)) else b""
                    break
                data = data[size:].removeprefix(b"\r\n")
    return hosts


GOOD = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
EVIL = b"GET /evil HTTP/1.1\r\nHost: evil.test\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a.test\r\n"
PIECES = [
    GOOD,
    EVIL,
    POST + b"Content-Length: %d\r\n\r\n" % len(EVIL),
    POST + b"Content-Length: 3\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
    POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n",
    POST + b"Content-Length: 3\r\nContent-Length: 0\r\n\r\n",
    POST + b"Connection: content-length\r\nContent-Length: 40\r\n\r\n",
    b"%x\r\n" % len(EVIL),
    b"%x\r\n%s\r\n0\r\n\r\n" % (len(EVIL), EVIL),
    b"3\r\nabc\r\n",
    b'3;x="\r\n"\r\nabc\r\n',
    b"03\r\nabc\r\n",
    b"0\r\n\r\n",
    b"0\r\nX: y\r\n\r\n",
    b"0\r\nHost: evil.test\r\n\r\n",
    b"0\n\n",
    b"abc",
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
    b"GET http://evil.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a.test\r\nX: y",
    b"Host: evil.test\r\n",
    b"HEAD / HTTP/1.0\r\nHost: a.test\r\n\r\n",
]


# A head that frames a body in its way, and something in that body's place; a few of them.
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([piece for piece in PIECES if piece.startswith(POST)]),
        st.sampled_from([piece for piece in PIECES if not piece.startswith(POST)]),
    ),
    min_size=1,
    max_size=3,
).map(lambda pairs: [piece for pair in pairs for piece in pair])


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.lists(st.sampled_from(PIECES), max_size=8), MESSAGES), st.booleans())
def test_whatever_is_sent_the_server_sees_one_host(loop_thread: LoopThread, pieces: list[bytes], whole: bool) -> None:
    data, error = through(loop_thread, [b"".join(pieces)] if whole else pieces)
    assert set(hosts_seen(data)) <= {b"a.test"}
    assert set(hosts_seen_otherwise(data)) <= {b"a.test"}
    if EVIL in data:
        # Then inside a body: what stands before it says so, or nothing of it would have been sent.
        before = data[: data.index(EVIL)]
        assert re.search(rb"Content-Length: \d+\r\n\r\n$", before) or re.search(rb"[0-9a-f]+\r\n$", before), before
    if error is None and pieces == [GOOD] * len(pieces):
        assert hosts_seen(data) == [b"a.test"] * len(pieces)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=120), st.integers(0, 3))
def test_random_bytes_after_good_requests(loop_thread: LoopThread, data: bytes, count: int) -> None:
    received, _ = through(loop_thread, [GOOD * count, data])
    assert received.startswith(GOOD * count)
    assert len(received) <= len(GOOD * count) + len(data) + 20


def test_every_cut_of_a_stream_gives_the_same(loop_thread: LoopThread) -> None:
    stream = GOOD + POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n" + GOOD
    whole, _ = through(loop_thread, [stream])
    assert hosts_seen(whole) == [b"a.test"] * 3
    for cut in range(1, len(stream), 3):
        assert through(loop_thread, [stream[:cut], stream[cut:]]) == (whole, None)


def test_bodies_are_framed_anew(loop_thread: LoopThread) -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    sent = chunked + b'0003 ; a="b"\r\nabc\r\n00\r\nX-Y:  z \r\n\r\n'
    assert through(loop_thread, [sent]) == (chunked + b"3\r\nabc\r\n0\r\nX-Y: z\r\n\r\n", None)


def test_a_body_that_ends_early_is_an_early_end(loop_thread: LoopThread) -> None:
    received, error = through(loop_thread, [POST + b"Content-Length: 10\r\n\r\nabc"])
    assert received.endswith(b"abc") and isinstance(error, Ended)
