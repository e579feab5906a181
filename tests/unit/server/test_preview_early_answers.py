"""Visitors that are still sending when they are answered: by the listener, or by a program that closes at once."""

from __future__ import annotations

import itertools
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from preview_rig import Site, Visitor, answer, program
from server_harness import Harness, make_data_dir

from bellglass.server.http import rests
from bellglass.supervise import preview_ca

LONG = 12 * 2**20
"""More than all buffers up to the program hold."""
DOMAIN = "preview.localhost"
REFUSAL = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!"
CONNECTIONS = 10


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> float:
    """How long the rest of a body is waited for."""
    monkeypatch.setattr(rests, "REST_S", 0.5)
    return rests.REST_S


@pytest.fixture(scope="module", params=["plain", "tls"])
def listening(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    root = tmp_path_factory.mktemp(request.param)
    options: dict[str, object] = {"previews.max_connections": CONNECTIONS, "previews.domain": DOMAIN}
    ca = None
    if request.param == "tls":
        made = preview_ca.make(make_data_dir(root), DOMAIN)
        options |= {"previews.tls_cert": str(made.cert), "previews.tls_key": str(made.key)}
        ca = made.ca
    harness = Harness(root, options).start()
    yield Listening(harness, ca)
    harness.stop()


class Listening:
    def __init__(self, harness: Harness, ca: Path | None) -> None:
        self.harness = harness
        self.api: httpx2.Client = harness.project()
        self.ca = ca

    def site(self, port: int, **options: str) -> Site:
        made = Site(self.harness, self.api, port, **options)
        made.host = f"{made.sandbox_id}-{port}.{DOMAIN}"
        return made

    def visitor(self, site: Site) -> Visitor:
        made = Visitor(self.harness.previews_port, site.host)
        if self.ca is not None:
            context = ssl.create_default_context(cafile=self.ca)
            made.connection = context.wrap_socket(made.connection, server_hostname=site.host)
            made.file = made.connection.makefile("rb")
        return made

    def upload(self, site: Site, *headers: str) -> int:
        """All of the body, and then the status."""
        with self.visitor(site) as visitor:
            visitor.send(visitor.request("/", f"Content-Length: {LONG}", *headers, method="PUT"))
            visitor.send(bytes(LONG))
            return visitor.read().status


def store(connection: socket.socket, head: bytes) -> None:
    left = LONG - len(head.partition(b"\r\n\r\n")[2])
    while left:
        left -= len(connection.recv(min(left, 2**20)))
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def test_refused_by_the_listener(listening: Listening) -> None:
    with program(store) as shown:
        site = listening.site(shown.port)
        assert listening.upload(site, f"X-Bellglass-Token: {site.token()['token']}") == 200
        assert listening.upload(site) == 401
        site.host = site.host.replace(f"-{shown.port}", "-1")
        assert listening.upload(site) == 404


def test_refused_by_the_program(listening: Listening) -> None:
    """It closes with bytes unread: its kernel resets the connection behind its answer."""
    with program(store) as shown:
        site = listening.site(shown.port, visibility="public")
        assert listening.upload(site) == 200
        shown.serve = answer(REFUSAL)
        assert listening.upload(site) == 413
        shown.serve = lambda connection, head: None
        assert listening.upload(site) == 502


def test_asked_for_a_body_only_by_the_program(listening: Listening) -> None:
    def ask(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        store(connection, head)

    with program(ask) as shown:
        site = listening.site(shown.port)
        expecting = (f"Content-Length: {LONG}", "Expect: 100-continue")
        with listening.visitor(site) as visitor:
            token = site.token()["token"]
            visitor.send(visitor.request("/", *expecting, f"X-Bellglass-Token: {token}", method="PUT"))
            assert visitor.read_head()[0] == 100
            visitor.send(bytes(LONG))
            assert visitor.read().status == 200
        with listening.visitor(site) as visitor:
            refused = visitor.ask("/", *expecting, method="PUT")
            assert refused.status == 401 and refused.header("connection") == "close"


@pytest.mark.parametrize(("piece", "pause_s"), [(bytes(65536), 0.0), (b"0", 0.05)], ids=["for ever", "slowly"])
@pytest.mark.parametrize("refused_by", ["listener", "program"])
def test_who_does_not_come_to_an_end_is_cut(
    listening: Listening, hasty: float, refused_by: str, piece: bytes, pause_s: float
) -> None:
    with program(answer(REFUSAL)) as shown:
        site = listening.site(shown.port, visibility="public" if refused_by == "program" else "private")
        with listening.visitor(site) as visitor:
            visitor.send(visitor.request("/", f"Content-Length: {2**40}", method="PUT"))
            assert visitor.read().status == (413 if refused_by == "program" else 401)
            began = time.monotonic()
            with pytest.raises(OSError):
                for each in itertools.repeat(piece):
                    visitor.send(each)
                    time.sleep(pause_s)
            assert time.monotonic() - began < hasty + 5


def test_they_make_room_for_others(listening: Listening) -> None:
    with program(store) as shown:
        site = listening.site(shown.port)
        crowd = []
        try:
            for _ in range(3 * CONNECTIONS):
                crowd.append(listening.visitor(site))
                crowd[-1].send(crowd[-1].request("/", f"Content-Length: {LONG}", method="PUT"))
                assert crowd[-1].read().status == 401
            assert listening.upload(site, f"X-Bellglass-Token: {site.token()['token']}") == 200
        finally:
            for one in crowd:
                one.__exit__()


def test_an_answer_that_is_read_slowly_comes_whole(listening: Listening, hasty: float) -> None:
    """It lies in buffers when the program has ended and the connection is to be closed."""
    said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (LONG, bytes(LONG))
    with program(answer(said)) as shown:
        site = listening.site(shown.port, visibility="public")
        with listening.visitor(site) as visitor:
            visitor.send(visitor.request("/", "Connection: close"))
            visitor.read_head()
            took, began = 0, time.monotonic()
            while piece := visitor.file.read(LONG // 40):
                took += len(piece)
                time.sleep(4 * hasty / 40)
            assert took == LONG and time.monotonic() - began > 2 * hasty
