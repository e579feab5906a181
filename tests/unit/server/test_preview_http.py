"""HTTP/1.1 through a published port: what arrives and what comes back is what it would be without us, or is refused."""

from __future__ import annotations

import gzip
import os
import socket
import threading

import httpx2
import pytest
from preview_rig import CHUNKED, WAIT_S, Serve, Site, answer, echo, program, public
from server_harness import Harness


def read_body(connection: socket.socket, head: bytes, length: int) -> bytes:
    body = head.partition(b"\r\n\r\n")[2]
    while len(body) < length:
        body += connection.recv(65536)
    return body


def test_the_head_arrives_as_it_was_sent(harness: Harness, api: httpx2.Client) -> None:
    with program() as shown:
        site = public(harness, api, shown.port)
        answered = site.get(
            "/a%2Fb//c;p?x=%20&y=%C3%A4&z=\xe4", "X-Odd:  two  spaces ", "Cookie: a=1; b=2", "Cookie: c=3",
            "Accept: text/html", "Authorization: Bearer app-token", "X-Forwarded-For: 6.6.6.6",
            "Forwarded: for=6.6.6.6",
            "X-Real-IP: 6.6.6.6", "Connection: keep-alive, X-Hop", "X-Hop: gone", "Keep-Alive: timeout=5",
            "Origin: https://app.example.com", "Range: bytes=0-1", method="PATCH",
        )  # fmt: skip
        assert answered.status == 200
        lines = answered.body.decode("latin-1").split("\r\n")
        assert lines[0] == "PATCH /a%2Fb//c;p?x=%20&y=%C3%A4&z=\xe4 HTTP/1.1"
        assert lines[1:9] == [
            f"Host: {site.host}", "X-Odd: two  spaces", "Cookie: a=1; b=2", "Cookie: c=3", "Accept: text/html",
            "Authorization: Bearer app-token", "Origin: https://app.example.com", "Range: bytes=0-1",
        ]  # fmt: skip
        assert lines[9:] == [
            "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: http", f"X-Forwarded-Host: {site.host}",
            "Connection: close", "", "",
        ]  # fmt: skip


def test_the_answer_comes_back_as_it_was_given(harness: Harness, api: httpx2.Client) -> None:
    packed = gzip.compress(os.urandom(50_000))
    head = (
        b"HTTP/1.1 203 Strange Reason\r\nSet-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\nContent-Encoding: gzip\r\n"
        b"Location: http://localhost:8000/there\r\nX-Frame-Options: DENY\r\nServer: mine\r\nContent-Length: %d\r\n\r\n"
    )
    with program(answer(head % len(packed) + packed)) as shown:
        answered = public(harness, api, shown.port).get("/")
        assert (answered.status, answered.body) == (203, packed)
        assert answered.headers == [
            ("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2"), ("Content-Encoding", "gzip"),
            ("Location", "http://localhost:8000/there"), ("X-Frame-Options", "DENY"), ("Server", "mine"),
            ("Content-Length", str(len(packed))),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "said", "expected"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", (200, "1234")),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 5\r\n\r\n", (304, "5")),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", (204, None)),
        ("GET", b"HTTP/1.0 200 OK\r\n\r\nup to the end", (200, None)),
        ("GET", CHUNKED + b"5;x=y\r\nup to\r\n8\r\n the end\r\n0\r\n\r\n", (200, None)),
        ("GET", b"HTTP/1.1 302 Found\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n", (302, "0")),
    ],
)  # fmt: skip
def test_answers_of_each_framing_leave_the_connection_usable(
    harness: Harness, api: httpx2.Client, method: str, said: bytes, expected: tuple[int, str | None]
) -> None:
    with program(answer(said)) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            for _ in range(3):
                answered = visitor.ask("/", method=method)
                assert (answered.status, answered.header("content-length")) == expected
                if b"up to" in said:
                    assert answered.body == b"up to the end"
        assert len(shown.heads) == 3


def test_requests_on_one_connection_are_judged_one_by_one(harness: Harness, api: httpx2.Client) -> None:
    with program() as mine, program() as other:
        site, foreign = public(harness, api, mine.port), Site(harness, harness.project("p2"), other.port)
        token = foreign.token()["token"]
        with site.visitor() as visitor:
            pipeline = [
                visitor.request("/1"),
                visitor.request("/2", host=foreign.host),
                visitor.request("/3", f"X-Bellglass-Token: {token}", host=foreign.host),
                visitor.request("/4", f"X-Bellglass-Token: {token}"),
                visitor.request("/5", host="localhost"),
                visitor.request("/6"),
            ]
            visitor.send(b"".join(pipeline))
            statuses = [visitor.read().status for _ in pipeline]
        assert statuses == [200, 401, 200, 200, 404, 200]
        assert [head.split()[1] for head in mine.heads] == [b"/1", b"/4", b"/6"]
        assert [head.split()[1] for head in other.heads] == [b"/3"]


def upload(chunked: bool) -> Serve:
    def serve(connection: socket.socket, head: bytes) -> None:
        body = head.partition(b"\r\n\r\n")[2]
        while not body.endswith(b"0\r\nX-Sum: 7\r\n\r\n" if chunked else b"END"):
            body += connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    return serve


def test_bodies_go_up_with_a_length_or_in_chunks_with_trailers(harness: Harness, api: httpx2.Client) -> None:
    data = os.urandom(2_000_000) + b"END"
    with program(upload(chunked=False)) as shown:
        site = public(harness, api, shown.port)
        for method in ("POST", "PUT", "DELETE"):
            with site.visitor() as visitor:
                thread = threading.Thread(
                    target=visitor.send,
                    args=(visitor.request("/", f"Content-Length: {len(data)}", method=method) + data,),
                )
                thread.start()
                assert visitor.read().body == data
                thread.join()
    with program(upload(chunked=True)) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            request = visitor.request("/", "Transfer-Encoding: chunked", "Trailer: X-Sum", method="POST")
            visitor.send(request + b"3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Sum: 7\r\nContent-Length: 9\r\n\r\n")
            assert visitor.read().body == b"3\r\nabc\r\na\r\n0123456789\r\n0\r\nX-Sum: 7\r\n\r\n"
            assert b"Trailer: X-Sum" in shown.heads[-1]


def test_trailers_of_an_answer(harness: Harness, api: httpx2.Client) -> None:
    said = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\nab\r\n0\r\nX: 1\r\nHost: evil\r\n"
        b"Connection: close\r\nTE: x\r\nUpgrade: x\r\nExpect: x\r\nSet-X: 2\r\n\r\n"
    )
    with program(answer(said)) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            assert visitor.ask("/").body == b"ab"
            assert visitor.trailers == [b"X: 1", b"Set-X: 2"]


def test_the_program_may_ask_for_the_body_and_hint_early(harness: Harness, api: httpx2.Client) -> None:
    def serve(connection: socket.socket, head: bytes) -> None:
        assert b"Expect: 100-continue" in head
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        body = read_body(connection, head, 5)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)

    with program(serve) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            visitor.send(visitor.request("/", "Expect: 100-continue", "Content-Length: 5", method="PUT"))
            assert visitor.read_head() == (103, [("Link", "</a.css>")])
            assert visitor.read_head()[0] == 100
            visitor.send(b"hello")
            assert visitor.read().body == b"hello"
            assert visitor.ask("/", "Expect: 100-continue", "Content-Length: 5", method="PUT").status == 103


def test_an_early_answer_ends_the_connection_instead_of_reading_the_body_as_requests(
    harness: Harness, api: httpx2.Client
) -> None:
    with program(answer(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!")) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            smuggled = visitor.request("/smuggled")
            visitor.send(
                visitor.request("/", f"Content-Length: {len(smuggled) + 10_000_000}", method="POST") + smuggled
            )
            answered = visitor.read()
            assert (answered.status, answered.body) == (413, b"no!") and answered.header("connection") == "close"
            assert visitor.ended()
        assert len(shown.heads) == 1


def test_events_come_as_they_are_sent_and_a_visitor_that_leaves_is_noticed(
    harness: Harness, api: httpx2.Client
) -> None:
    left, go = threading.Event(), threading.Event()

    def serve(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            connection.sendall(b"data: %d\n\n" % number)
            assert go.wait(10)
            go.clear()
        try:
            connection.recv(1)
        finally:
            left.set()

    with program(serve) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            visitor.send(visitor.request("/events"))
            assert visitor.read_head()[0] == 200
            chunks = visitor.chunks()
            for number in range(3):
                assert next(chunks) == b"data: %d\n\n" % number
                go.set()
        assert left.wait(5), "the program does not hear that its visitor has gone"


def websocket(connection: socket.socket, head: bytes) -> None:
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-A: b\r\n\r\nhi"
    )
    connection.sendall(head.partition(b"\r\n\r\n")[2])
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.sendall(b"bye")


def test_after_an_upgrade_bytes_go_both_ways_until_both_ends(harness: Harness, api: httpx2.Client) -> None:
    data = os.urandom(8_000_000)
    with program(websocket) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            headers = ("Upgrade: websocket", "Connection: keep-alive, Upgrade", "Sec-WebSocket-Protocol: chat")
            visitor.send(visitor.request("/ws", *headers) + b"early")
            assert visitor.read_head() == (101, [("X-A", "b"), ("Connection", "Upgrade"), ("Upgrade", "websocket")])
            assert visitor.file.read(7) == b"hiearly"
            thread = threading.Thread(target=lambda: (visitor.send(data), visitor.connection.shutdown(socket.SHUT_WR)))
            thread.start()
            assert visitor.file.read() == data + b"bye"
            thread.join()
        assert b"Upgrade: websocket" in shown.heads[0] and b"Sec-WebSocket-Protocol: chat" in shown.heads[0]


def test_a_change_of_protocol_that_nobody_asked_for(harness: Harness, api: httpx2.Client) -> None:
    with program(websocket) as shown:
        site = public(harness, api, shown.port)
        assert site.get("/").status == 502
        assert site.get("/", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AA").status == 502
        assert b"pgrade" not in b"".join(shown.heads).replace(b"Upgrade-Insecure", b"")


def test_an_answer_longer_than_it_says_is_cut_at_its_length(harness: Harness, api: httpx2.Client) -> None:
    with program(
        answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nX-Evil: 1\r\n\r\n")
    ) as shown:
        with public(harness, api, shown.port).visitor() as visitor:
            for _ in range(2):
                answered = visitor.ask("/")
                assert answered.body == b"ok" and answered.header("x-evil") is None


def test_a_program_that_begins_to_listen_later(harness: Harness, api: httpx2.Client) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        site = public(harness, api, reserved.getsockname()[1])
        answers = []
        thread = threading.Thread(target=lambda: answers.append(site.get("/")))
        thread.start()
        harness.until(lambda: harness.peer.count("port.dial") >= 3)
        reserved.listen()
        connection, _ = reserved.accept()
        with connection:
            echo(connection, connection.recv(65536))
            thread.join()
    assert answers[0].status == 200


def test_a_program_that_never_listens(harness: Harness, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bellglass.server.previews.house.START_WAIT_S", 0.3)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        site = public(harness, api, reserved.getsockname()[1])
        answered = site.get("/", "Accept: text/html")
        assert answered.status == 502 and answered.header("retry-after") == "1"
        assert answered.header("content-security-policy") is not None


def test_old_clients_and_closing_ones(harness: Harness, api: httpx2.Client) -> None:
    with program(answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n")) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            visitor.send(f"GET / HTTP/1.0\r\nHost: {site.host}\r\nConnection: keep-alive\r\n\r\n".encode())
            answered = visitor.read()
            assert answered.body == b"ab" and answered.header("transfer-encoding") is None and visitor.ended()
        with site.visitor() as visitor:
            assert visitor.ask("/", "Connection: close").header("connection") == "close" and visitor.ended()


def test_a_slow_reader_holds_the_program_and_costs_little(harness: Harness, api: httpx2.Client) -> None:
    size, block = 100_000_000, bytes(65536)
    held_at, held = [0], threading.Event()

    def serve(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        written = 0
        connection.settimeout(1)
        while written < size:
            try:
                written += connection.send(block[: size - written])
            except TimeoutError:  # for a second nobody took anything
                held_at[0] = written
                held.set()
                connection.settimeout(WAIT_S)

    with program(serve) as shown:
        with public(harness, api, shown.port).visitor() as visitor:
            visitor.send(visitor.request("/"))
            assert visitor.read_head()[0] == 200
            assert len(visitor.file.read(1024)) == 1024
            assert held.wait(WAIT_S)
            assert held_at[0] < 20_000_000, "what nobody reads is taken from the program"
            got = 1024
            while got < size:
                got += len(visitor.file.read(min(1 << 20, size - got)))


def test_a_visitor_that_stops_in_the_middle_of_its_body(
    harness: Harness, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellglass.server.previews.exchange.STALL_S", 0.3)
    reset = threading.Event()

    def serve(connection: socket.socket, head: bytes) -> None:
        try:
            while connection.recv(65536):
                continue
        finally:
            reset.set()

    with program(serve) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as visitor:
            visitor.send(visitor.request("/", "Content-Length: 10", method="POST") + b"abc")
            assert visitor.ended() and reset.wait(WAIT_S)
