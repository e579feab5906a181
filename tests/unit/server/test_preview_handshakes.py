"""Connections of published ports that never finish their TLS handshake: bounded, and in nobody's way."""

from __future__ import annotations

import os
import resource
import select
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from preview_rig import Program, Site, program
from server_harness import Harness, make_data_dir

from bellglass.server.previews import handshakes
from bellglass.supervise import preview_ca

DOMAIN = "preview.localhost"
DOMAIN = "preview.localhost"
CROWD = 3000
MOST = 200
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
SERVED_S = 2.0


@pytest.fixture(scope="module")
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2 * CROWD:
        pytest.skip(f"{2 * CROWD} descriptors are more than this process may have")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * CROWD), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module")
def made(many_descriptors: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, ssl.SSLContext]]:
    root = tmp_path_factory.mktemp("handshakes")
    certificate = preview_ca.make(make_data_dir(root), DOMAIN)
    options = {
        "previews.domain": DOMAIN, "previews.tls_cert": str(certificate.cert), "previews.tls_key": str(certificate.key),
        "previews.max_connections": 2 * MOST,
    }  # fmt: skip
    harness = Harness(root, options).start()
    yield harness, ssl.create_default_context(cafile=certificate.ca)
    harness.stop()


@pytest.fixture(scope="module")
def site(made: tuple[Harness, ssl.SSLContext], shown: Program) -> Site:
    harness, _ = made
    site = Site(harness, harness.project("p1"), shown.port, visibility="public")
    site.host = f"{site.sandbox_id}-{shown.port}.{DOMAIN}"
    return site


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


def dial(site: Site, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.harness.previews_port), 15, source_address=(source, 0))


def visit(made: tuple[Harness, ssl.SSLContext], site: Site, source: str) -> float:
    """Seconds until it was served."""
    began = time.monotonic()
    with made[1].wrap_socket(dial(site, source), server_hostname=site.host) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {site.host}\r\nConnection: close\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
    return time.monotonic() - began


def ended(crowd: list[socket.socket]) -> int:
    poll = select.poll()
    for one in crowd:
        poll.register(one, select.POLLIN | select.POLLRDHUP)
    return len(poll.poll(0))


def until_all_are_gone_but(crowd: list[socket.socket], most: int) -> None:
    deadline, left, poll = time.monotonic() + handshakes.TLS_HANDSHAKE_S / 2, len(crowd), select.poll()
    for one in crowd:
        poll.register(one, select.POLLRDHUP)
    while left > most:
        gone = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        assert gone, f"{left} of {len(crowd)} are still held"
        for descriptor, _ in gone:
            poll.unregister(descriptor)
        left -= len(gone)


def half_handshakes(site: Site, crowd: list[socket.socket], sources: list[str]) -> None:
    for number in range(CROWD):
        crowd.append(dial(site, sources[number % len(sources)]))
        if number % 2:
            crowd[-1].sendall(HALF_A_HELLO)


@pytest.mark.parametrize(
    ("sources", "most"),
    [(["127.0.0.2"], handshakes.MAX_OF_PEER), ([f"127.0.{n // 250 + 1}.{n % 250 + 1}" for n in range(1500)], MOST)],
    ids=["one peer", "1500 peers"],
)
def test_half_handshakes_are_in_nobodys_way(
    made: tuple[Harness, ssl.SSLContext],
    site: Site,
    crowd: list[socket.socket],
    sources: list[str],
    most: int,
) -> None:
    assert visit(made, site, "127.0.0.1") < SERVED_S
    before = descriptors()
    half_handshakes(site, crowd, sources)
    for source in ("127.0.0.1", sources[0]):
        assert visit(made, site, source) < SERVED_S
    until_all_are_gone_but(crowd, most)
    assert ended(crowd[-min(most, 50) :]) == 0, "the newest were dropped"
    # This process has both ends.
    assert descriptors() - before - len(crowd) <= most + 20
    # What was given way to has taken nothing for good.
    for one in crowd:
        one.close()
    assert visit(made, site, sources[0]) < SERVED_S


def test_proxies_in_front_speak_for_many(
    made: tuple[Harness, ssl.SSLContext], site: Site, crowd: list[socket.socket], tmp_path: Path
) -> None:
    many = handshakes.MAX_OF_PEER * 2
    for _ in range(many):
        crowd.append(dial(site, "127.0.0.3"))
    until_all_are_gone_but(crowd, handshakes.MAX_OF_PEER)
    options = made[0].overrides | {"previews.trusted_proxies": ["127.0.0.3"]}  # type: ignore[operator]
    harness = Harness(tmp_path, options).start()
    try:
        with program() as shown:
            behind = Site(harness, harness.project("p1"), shown.port, visibility="public")
            behind.host = f"{behind.sandbox_id}-{shown.port}.{DOMAIN}"
            held = [dial(behind, "127.0.0.3") for _ in range(many)]
            crowd += held
            assert visit(made, behind, "127.0.0.3") < SERVED_S
            assert ended(held) == 0
    finally:
        harness.stop()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
