"""HTTP through the proxy: the Host of every request, and bodies that can't hide another request."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from bellglass.testing.egress import WORLD, Rig, counted, until

RULES = ({"host": "a.test", "ports": [80, 8080]},)


class HttpServer:
    """Takes bytes as they come and answers as told; no parser that could share the proxy's mistakes."""

    def __init__(self, rig: Rig, port: int) -> None:
        self._listener = rig.listen(WORLD + "10", port)
        self._listener.settimeout(20)

    def accept(self) -> socket.socket:
        sock, _ = self._listener.accept()
        sock.settimeout(20)
        return sock

    def was_dialled(self) -> bool:
        self._listener.setblocking(False)
        try:
            self._listener.accept()[0].close()
        except BlockingIOError:
            return False
        finally:
            self._listener.settimeout(20)
        return True

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as running:
        running.dns.zone["a.test"] = [WORLD + "10"]
        running.attach("sb1", *RULES)
        yield running


@pytest.fixture(params=[80, 8080])
def port(request: pytest.FixtureRequest) -> int:
    """One that must be HTTP and one where it's seen by the first line."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def server(rig: Rig, port: int) -> Iterator[HttpServer]:
    running = HttpServer(rig, port)
    yield running
    running.close()


def head(path: str = "/", *lines: str, method: str = "GET", host: str = "a.test") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", "")).encode()


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := sock.recv(count - len(data))):
        data += piece
    return data


def answered(client: socket.socket, peer: socket.socket, request: bytes, seen: bytes | None = None) -> None:
    client.sendall(request)
    seen = request if seen is None else seen
    assert read(peer, len(seen)) == seen
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert read(client, 40) == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextlib.contextmanager
def connection(rig: Rig, server: HttpServer, port: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """With one good request done."""
    with rig.sandboxes["sb1"].dial("a.test", port) as client:
        client.sendall(head("/first"))
        with server.accept() as peer:
            assert read(peer, len(head("/first"))) == head("/first")
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            assert read(client, 40)[-2:] == b"ok"
            yield client, peer


def test_requests_one_after_the_other(rig: Rig, server: HttpServer, port: int) -> None:
    with connection(rig, server, port) as (client, peer):
        answered(client, peer, head("/second"))
        answered(client, peer, head("/x", "Content-Length: 3", method="POST") + b"abc")
        answered(client, peer, head("/x", host=f"a.test:{port}"))
        answered(client, peer, head("http://a.test/abs"), head("/abs"))
        chunked = head("/c", "Transfer-Encoding: chunked", method="POST")
        answered(
            client,
            peer,
            chunked + b"5;x=y\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
            chunked + b"5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
        )
        answered(client, peer, b"\r\n" + head("/after-a-blank-line"), head("/after-a-blank-line"))


SMUGGLED = [
    ("another Host", head(host="evil.test"), "host_mismatch"),
    ("no Host", b"GET / HTTP/1.1\r\n\r\n", "bad_request"),
    ("two Hosts", head("/", "Host: evil.test"), "bad_request"),
    ("absolute-form", head("http://evil.test/"), "host_mismatch"),
    ("CONNECT", head("a.test:443", method="CONNECT"), "bad_request"),
    ("h2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "bad_request"),
    ("h2c upgrade", head("/", "Connection: Upgrade", "Upgrade: h2c", "HTTP2-Settings: AAMA"), "bad_request"),
    ("CL and TE", head("/", "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n", "bad_request"),
    ("two CL", head("/", "Content-Length: 1", "Content-Length: 2") + b"ab", "bad_request"),
    ("odd TE", head("/", "Transfer-Encoding: xchunked") + b"0\r\n\r\n", "bad_request"),
    ("fold", b"GET / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n Host: evil.test\r\n\r\n", "bad_request"),
    ("bare LF", b"GET / HTTP/1.1\nHost: evil.test\n\n", "bad_request"),
    ("bare LF inside", b"GET / HTTP/1.1\r\nHost: a.test\r\nX: y\nHost: evil.test\r\n\r\n", "bad_request"),
    ("bare CR inside", b"GET / HTTP/1.1\r\nHost: a.test\r\nX: y\rHost: evil.test\r\n\r\n", "bad_request"),
    ("space before colon", b"GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", "bad_request"),
    ("HTTP/0.9", b"GET /\r\nHost: evil.test\r\n\r\n", "bad_request"),
    ("unknown method", b"FOO / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "host_mismatch"),
    ("head too long", b"GET / HTTP/1.1\r\nHost: a.test\r\n" + b"X: y\r\n" * 12000 + b"\r\n", "bad_request"),
    ("Connection: host", head("/", "Connection: close, host"), "bad_request"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), [pytest.param(*case[1:], id=case[0]) for case in SMUGGLED])
def test_first_and_later_requests_are_judged_alike(
    rig: Rig, server: HttpServer, port: int, data: bytes, reason: str
) -> None:
    """First, second on the same connection, behind a body, and pipelined right behind a good one."""
    box = rig.sandboxes["sb1"]
    with counted(rig, reason):
        assert box.is_reset("a.test", port, data)
    if port == 80:
        assert not server.was_dialled()
    else:
        server.accept().close()
    for before in (head("/good"), head("/good", "Content-Length: 3", method="POST") + b"abc"):
        with connection(rig, server, port) as (client, peer):
            answered(client, peer, before)
            with counted(rig, reason):
                client.sendall(before + data)
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
                with contextlib.suppress(ConnectionResetError):
                    received = b""
                    while piece := peer.recv(65536):
                        received += piece
                    assert received in (before, b"")


@pytest.mark.parametrize(
    "body",
    [b"5\r\nhelloGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", b"5\nhello\r\n0\r\n\r\n", b"-1\r\n", b"0x5\r\nhello\r\n",
     b"5\r\nhello\n0\r\n\r\n", b"fffffffffffffffff\r\n", b"0\r\nHost: evil.test\r\n\r\n",
     b"0\r\nContent-Length: 5\r\n\r\n",
     b"5;\x00\r\nhello\r\n", b"\r\n5\r\nhello\r\n0\r\n\r\n"],
)  # fmt: skip
def test_chunks_that_two_servers_could_read_differently(rig: Rig, server: HttpServer, port: int, body: bytes) -> None:
    start = head("/c", "Transfer-Encoding: chunked", method="POST")
    with connection(rig, server, port) as (client, peer):
        answered(client, peer, start + b"5\r\nhello\r\n0\r\n\r\n")
        with counted(rig, "bad_request"):
            client.sendall(start + body)
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := peer.recv(65536):
                received += piece
        assert b"evil" not in received


def test_what_looks_like_a_request_inside_a_body_is_a_body(rig: Rig, server: HttpServer, port: int) -> None:
    evil = head("/", host="evil.test")
    with connection(rig, server, port) as (client, peer):
        answered(client, peer, head("/x", f"Content-Length: {len(evil)}", method="POST") + evil)
        answered(client, peer, head("/y"))


def test_pipelined_requests_and_their_responses(rig: Rig, server: HttpServer, port: int) -> None:
    with connection(rig, server, port) as (client, peer):
        client.sendall(head("/1", method="HEAD") + head("/2") + head("/3"))
        both = head("/1", method="HEAD") + head("/2") + head("/3")
        assert read(peer, len(both)) == both
        answers = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
        answers += b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        answers += b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"
        peer.sendall(answers)
        assert read(client, len(answers)) == answers
        answered(client, peer, head("/4"))


def test_100_continue(rig: Rig, server: HttpServer, port: int) -> None:
    start = head("/u", "Content-Length: 4", "Expect: 100-continue", method="PUT")
    with connection(rig, server, port) as (client, peer):
        client.sendall(start)
        assert read(peer, len(start)) == start
        peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert read(client, 25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert read(peer, 4) == b"body"
        peer.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
        assert read(client, 43) == b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
        answered(client, peer, head("/next"))


UPGRADE = head("/ws", "Connection: Upgrade", "Upgrade: websocket")


def test_after_a_101_bytes_pass_as_they_are(rig: Rig, server: HttpServer, port: int) -> None:
    with connection(rig, server, port) as (client, peer):
        client.sendall(UPGRADE)
        assert read(peer, len(UPGRADE)) == UPGRADE
        peer.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x02hi")
        assert read(client, 60)[-4:] == b"\x81\x02hi"
        client.sendall(b"\x81\x85\x00\x00\x00\x00hello\n\r\n")
        assert read(peer, 14) == b"\x81\x85\x00\x00\x00\x00hello\n\r\n"


def test_without_the_101_they_are_requests_as_before(rig: Rig, server: HttpServer, port: int) -> None:
    with connection(rig, server, port) as (client, peer):
        answered(client, peer, UPGRADE)
        answered(client, peer, head("/next"))
        with counted(rig, "host_mismatch"):
            client.sendall(UPGRADE + head(host="evil.test"))
            assert read(peer, len(UPGRADE)) == UPGRADE
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):  # held until it is known whether the server has switched
                peer.recv(1)
            peer.settimeout(20)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            with pytest.raises(ConnectionResetError):
                while client.recv(100):
                    pass
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""


def test_a_101_that_nobody_asked_for_opens_nothing(rig: Rig, server: HttpServer, port: int) -> None:
    with connection(rig, server, port) as (client, peer):
        client.sendall(head("/x"))
        assert read(peer, len(head("/x"))) == head("/x")
        peer.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\nmore")
        assert read(client, 40)[-4:] == b"more"
        with counted(rig, "bad_request"):
            client.sendall(head("/y"))
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_a_response_until_close(rig: Rig, server: HttpServer, port: int) -> None:
    with rig.sandboxes["sb1"].dial("a.test", port) as client:
        client.sendall(b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n")
        with server.accept() as peer:
            assert read(peer, 32) == b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n"
            peer.sendall(b"HTTP/1.0 200 OK\r\n\r\nall of it")
        assert read(client, 1000) == b"HTTP/1.0 200 OK\r\n\r\nall of it"


def test_large_bodies_both_ways(rig: Rig, server: HttpServer, port: int) -> None:
    data = os.urandom(10_000_000)
    with connection(rig, server, port) as (client, peer):
        start = head("/up", f"Content-Length: {len(data)}", method="PUT")
        sender = threading.Thread(target=client.sendall, args=(start + data,))
        sender.start()
        assert read(peer, len(start) + len(data)) == start + data
        sender.join()
        answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        sender = threading.Thread(target=peer.sendall, args=(answer,))
        sender.start()
        assert read(client, len(answer)) == answer
        sender.join()
        answered(client, peer, head("/next"))


def test_at_another_port_raw_protocols_pass(rig: Rig, server: HttpServer, port: int) -> None:
    if port == 80:
        with counted(rig, "bad_request"):
            assert rig.sandboxes["sb1"].is_reset("a.test", 80, b"PING\r\n")
        return
    with rig.sandboxes["sb1"].dial("a.test", port) as client:
        client.sendall(b"*1\r\n$4\r\nPING\r\n")
        with server.accept() as peer:
            assert read(peer, 14) == b"*1\r\n$4\r\nPING\r\n"
            peer.sendall(b"+PONG\r\n")
            assert read(client, 7) == b"+PONG\r\n"


def test_the_end_of_either_side_is_passed_on(rig: Rig, server: HttpServer, port: int) -> None:
    with connection(rig, server, port) as (client, peer):
        client.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b""
        peer.close()
        assert client.recv(1) == b""
    with connection(rig, server, port) as (client, peer):
        peer.close()
        assert client.recv(1) == b""
    until(lambda: rig.counters("sb1")["open"] == 0)
