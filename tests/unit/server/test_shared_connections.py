"""Connections that carry several requests: none is read out of another one's body, whoever skips that, and no two
visitors meet on one connection to a program."""

from __future__ import annotations

import socket
import threading

import h2.events
import httpx2
import pytest
from preview_http2_rig import Raw, speak
from preview_rig import WAIT_S, Site, program, public
from server_harness import ADMIN, Harness, dial, make

EVIL = b"GET /evil HTTP/1.1\r\nHost: evil.test\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n%b"


def chunked(body: bytes) -> bytes:
    return b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def until_closed(connection: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def smuggled(project: str) -> bytes:
    body = b'{"project":"%b"}' % project.encode()
    head = b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nConnection: close\r\n" % ADMIN.encode()
    return head + LENGTH % (len(body), body)


def projects(harness: Harness) -> set[str]:
    return {name for (name,) in harness.database("select name from projects")}


@pytest.mark.parametrize("upgrade", [b"h2c", b"x", b"websocket", None])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_the_api_reads_no_request_out_of_the_body_of_an_upgrade(
    harness: Harness, upgrade: bytes | None, framing: str
) -> None:
    evil = smuggled("out-of-a-body")
    told = b"" if upgrade is None else b"Connection: Upgrade\r\nUpgrade: %b\r\n" % upgrade
    head = b"POST /v1/keys HTTP/1.1\r\nHost: x\r\n" + told
    head, body = (head + (LENGTH % (len(evil), evil) if framing == "length" else chunked(evil))).split(b"\r\n\r\n", 1)
    with dial(harness) as connection:
        connection.sendall(head + b"\r\n\r\n")
        connection.settimeout(0.2)
        try:
            said = connection.recv(65536)
        except TimeoutError:
            said = b""
        connection.settimeout(WAIT_S)
        connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        said += until_closed(connection)
    assert said.startswith(b"HTTP/1.1 401 " if upgrade is None else b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1 and "out-of-a-body" not in projects(harness)


def test_the_api_makes_no_tunnel(harness: Harness) -> None:
    with dial(harness) as connection:
        connection.sendall(b"CONNECT /v1/keys HTTP/1.1\r\nHost: x\r\n\r\n" + smuggled("out-of-a-tunnel"))
        said = until_closed(connection)
    assert said.startswith(b"HTTP/1.1 400 ") and said.count(b"HTTP/1.1 ") == 1


def test_an_upgrade_that_is_not_taken_is_the_last_request_of_its_connection(harness: Harness) -> None:
    """Of what came together with its head nobody knows how much was lost."""
    for told, end in ((b"", b"keep"), (b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", b"close")):
        with dial(harness) as connection:
            connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n" + told + b"\r\n")
            if end == b"close":
                said = until_closed(connection)
                assert said.startswith(b"HTTP/1.1 200 ") and b"connection: close" in said.lower()
            else:
                assert b"connection: close" not in connection.recv(65536).lower()
                connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_visitors_of_e2bs_ports_reach_nothing_else_of_the_api(harness: Harness, api: httpx2.Client) -> None:
    """The listener of published ports may be open to everybody where the API's is not."""
    box = make(api)["id"]
    evil = smuggled("through-a-port")
    upgrades = ["Connection: Upgrade\r\nUpgrade: x\r\n", "Connection: Upgrade\r\nUpgrade: websocket\r\n"]
    for told in ["", *upgrades * 10]:
        with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = f"POST /process.Process/List HTTP/1.1\r\nHost: 49983-{box}.localhost\r\n{told}Content-Length: "
            connection.sendall(f"{head}{len(evil)}\r\n\r\n".encode())
            connection.sendall(evil)
            connection.shutdown(socket.SHUT_WR)
            assert until_closed(connection).startswith(b"HTTP/1.1 401 ")
    assert "through-a-port" not in projects(harness)
    with dial(harness) as connection:
        connection.sendall(evil)
        assert until_closed(connection).startswith(b"HTTP/1.1 201 ")
    assert "through-a-port" in projects(harness)


@pytest.mark.parametrize("upgrade", ["x", "websocket"])
def test_a_program_is_asked_for_no_upgrade_with_a_body(harness: Harness, api: httpx2.Client, upgrade: str) -> None:
    with program() as shown:
        site = public(harness, api, shown.port)
        told = ("Connection: Upgrade", f"Upgrade: {upgrade}")
        for body, asked in (((), True), (("Content-Length: 0",), True), (("Content-Length: 3",), False)):
            with site.visitor() as visitor:
                visitor.send(visitor.request("/", *told, *body, method="POST") + (b"abc" if not asked else b""))
                assert visitor.read().status == 200
            assert (b"\r\nUpgrade: " + upgrade.encode() in shown.heads[-1]) == asked
            assert (b"\r\nConnection: close\r\n" in shown.heads[-1]) != asked


@pytest.mark.parametrize("upgrade", ["h2c", "h2", "HTTP/2.0", "HTTP/3", "TLS/1.0"])
def test_a_program_is_asked_for_no_other_http_behind_our_checks(
    harness: Harness, api: httpx2.Client, upgrade: str
) -> None:
    with program() as shown:
        site = public(harness, api, shown.port)
        site.get("/", "Connection: Upgrade", "Upgrade: websocket")
        assert b"Upgrade: websocket" in shown.heads[-1]
        site.get("/", "Connection: Upgrade", f"Upgrade: {upgrade}")
        assert b"upgrade" not in shown.heads[-1].lower()


class Careless:
    """A program that ignores lengths, and `Connection: close`: what follows a head is its next request. `connections`:
    the requests that came on each."""

    def __init__(self) -> None:
        self.connections: list[list[bytes]] = []
        self.gone = threading.Semaphore(0)

    def __call__(self, connection: socket.socket, data: bytes) -> None:
        heads: list[bytes] = []
        self.connections.append(heads)
        try:
            while True:
                while b"\r\n\r\n" in data:
                    head, data = data.split(b"\r\n\r\n", 1)
                    heads.append(head)
                    path = head.split()[1]
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))
                piece = connection.recv(65536)
                if not piece:
                    return
                data += piece
        finally:
            self.gone.release()


def test_a_body_that_a_program_takes_for_a_request_is_answered_to_nobody(harness: Harness, api: httpx2.Client) -> None:
    careless = Careless()
    with program(careless) as shown:
        site = public(harness, api, shown.port)
        with site.visitor() as one, site.visitor() as other:
            for round in range(3):
                one.send(one.request("/one", f"Content-Length: {len(EVIL)}", method="POST") + EVIL)
                assert other.ask(f"/other-{round}").body == b"/other-%d" % round
                assert one.read().body == b"/one"
                assert one.ask("/again").body == b"/again", "on the same connection of the visitor"
        for _ in range(9):
            assert careless.gone.acquire(timeout=WAIT_S), "connections to the program end with their one answer"
    paths = [[head.split()[1] for head in heads] for heads in careless.connections]
    assert sorted(each[0] for each in paths) == sorted([b"/one", b"/again"] * 3 + [b"/other-%d" % n for n in range(3)])
    assert [b"/one", b"/evil"] in paths, "it does take bodies for requests"
    assert all(each[1:] in ([], [b"/evil"]) for each in paths), "what it skipped stays alone on its connection"


def h2_visit(harness: Harness, site: Site, *paths: str) -> list[int]:
    with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S) as connection:
        raw = Raw(connection)
        asked = [raw.ask(site.host, path) for path in paths]
        statuses = [raw.status(stream)[0] for stream in asked]
        for stream in asked:
            raw.until(lambda e, s=stream: isinstance(e, h2.events.StreamEnded) and e.stream_id == s)
    return [int(status) for status in statuses]


def test_visitors_in_http2_share_no_connection_to_a_program(harness: Harness, api: httpx2.Client) -> None:
    with program(speak) as shown:
        site = public(harness, api, shown.port)
        assert h2_visit(harness, site, "/a", "/b") == [200, 200]
        assert len(shown.heads) == 1, "streams of one visitor do"
        assert h2_visit(harness, site, "/c") == [200]
        assert len(shown.heads) == 2
