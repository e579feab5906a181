"""Programs that speak TLS alone: spoken to in TLS, whatever their certificate; what breaks is told, and no answer is
cut short in silence."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import httpx2
import pytest
from preview_http2_rig import Raw, speak
from preview_rig import Answer, Program, Site, Visitor, program, public
from server_harness import Harness, error_of, make, make_data_dir

from bellglass.server.previews import program_tls
from bellglass.supervise import preview_ca

BIG = os.urandom(5_000_000)


Speaking = Callable[[str], ssl.SSLContext]


@pytest.fixture(scope="module")
def speaks(tmp_path_factory: pytest.TempPathFactory) -> Speaking:
    """A program's side of TLS, for one protocol."""
    made = preview_ca.make(make_data_dir(tmp_path_factory.mktemp("program")), "any.localhost")

    def context(protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.cert, made.key)
        context.set_alpn_protocols([protocol])
        return context

    return context


def reason(answer: Answer) -> tuple[int, str, str]:
    error = json.loads(answer.body)["error"]
    return answer.status, error["details"]["reason"], error["message"]


def serve(connection: socket.socket, head: bytes) -> None:
    head, _, rest = head.partition(b"\r\n\r\n")
    line = head.split(b"\r\n")[0]
    if b"/big" in line:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BIG) + BIG)
    elif b"/body" in line:
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        digest = hashlib.sha256(rest)
        left = length - len(rest)
        while left:
            piece = connection.recv(65536)
            digest.update(piece)
            left -= len(piece)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n" + digest.hexdigest().encode())
    elif b"/turn" in line:
        connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
        while piece := connection.recv(65536):
            connection.sendall(piece)
    elif b"/torn" in line:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    else:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


@pytest.fixture(scope="module")
def speaking(speaks: Speaking) -> Iterator[Program]:
    with program(serve, speaks("http/1.1")) as made:
        yield made


@pytest.fixture
def site(harness: Harness, api: httpx2.Client, speaking: Program) -> Site:
    return public(harness, api, speaking.port, tls=True)


def test_the_program_gets_what_was_sent(site: Site, speaking: Program) -> None:
    assert site.record["tls"] is True
    speaking.heads.clear()
    assert site.get("/a?b", "X-One: 1").body == b"hello"
    assert speaking.heads[0].startswith(b"GET /a?b HTTP/1.1\r\n") and b"X-One: 1\r\n" in speaking.heads[0]


def test_it_is_told_by_the_option_alone(harness: Harness, api: httpx2.Client, speaking: Program) -> None:
    assert public(harness, api, speaking.port).get().status == 502, "in the clear it gives no answer"
    with socket.create_server(("127.0.0.1", 0)) as clear:

        def refuse() -> None:
            for _ in range(2):
                with clear.accept()[0] as connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=refuse, daemon=True).start()
        port = clear.getsockname()[1]
        assert public(harness, api, port).get().status == 400, "in the clear it gives one"
        status, why, message = reason(public(harness, api, port, tls=True).get())
        assert (status, why) == (502, "failed") and "no TLS with the program" in message


def test_long_answers_and_bodies_are_whole(site: Site) -> None:
    assert site.get("/big").body == BIG
    with site.visitor() as visitor:
        visitor.send(visitor.request("/body", f"Content-Length: {len(BIG)}", method="POST") + BIG)
        assert visitor.read().body == hashlib.sha256(BIG).hexdigest().encode()


def test_both_directions_at_once_after_an_upgrade(site: Site) -> None:
    with site.visitor() as visitor:
        visitor.send(visitor.request("/turn", "Upgrade: x", "Connection: Upgrade"))
        assert visitor.read_head()[0] == 101
        sender = threading.Thread(target=visitor.send, args=(BIG,))
        sender.start()
        assert visitor.file.read(len(BIG)) == BIG
        sender.join()
        visitor.connection.shutdown(socket.SHUT_WR)
        assert visitor.ended()


def test_an_answer_that_breaks_off_is_not_whole(site: Site) -> None:
    with site.visitor() as visitor, pytest.raises((EOFError, ConnectionResetError)):
        visitor.ask("/torn")


def test_who_never_ends_the_handshake_is_not_waited_for(
    harness: Harness, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_tls, "HANDSHAKE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        site = public(harness, api, silent.getsockname()[1], tls=True)
        assert reason(site.get())[:2] == (502, "timeout")


def test_at_the_first_visit(harness: Harness, api: httpx2.Client, speaking: Program) -> None:
    box = make(api, auto_publish="public", auto_publish_tls=[speaking.port])["id"]
    for _ in range(2):  # before it is in the list, and after
        with Visitor(harness.previews_port, f"{box}-{speaking.port}.localhost") as visitor:
            assert visitor.ask("/").body == b"hello"
    assert [port["tls"] for port in api.get(f"/v1/sandboxes/{box}/ports").json()["items"]] == [True]
    wrong = ({"auto_publish_tls": [1]}, {"auto_publish": "public", "auto_publish_tls": [70000]})
    for body in wrong:
        assert error_of(api.post("/v1/sandboxes", json=body), 422)["details"]["field"] == "auto_publish_tls"


def test_http2_in_tls(harness: Harness, api: httpx2.Client, speaks: Speaking) -> None:
    with program(speak, speaks("h2")) as made:
        site = public(harness, api, made.port, http2=True, tls=True)
        with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=10) as connection:
            raw = Raw(connection)
            assert [raw.status(raw.ask(site.host, "/"))[0] for _ in range(3)] == [200, 200, 200]
    assert len(made.heads) == 1, "the streams of one visitor share a connection"
