"""A policy that closes everything while connections are in whatever state: none sends one byte more."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from bellglass.testing.egress import WORLD, Rig, until
from tests.security.client_hellos import hello

RULES = ({"host": "a.test", "ports": [80, 443, 8080, 8443]},)
GET = b"GET /first HTTP/1.1\r\nHost: a.test\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\n"
CHUNKS = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"
HELLO = hello("a.test")


class State(NamedTuple):
    """Sent before the change; how many bytes of that the server has by then; sent behind it."""

    port: int
    before: bytes
    passed: int
    behind: bytes


STATES = {
    "half a hello": State(443, HELLO[:90], 0, HELLO[90:]),
    "half a hello at another port": State(8443, HELLO[:90], 0, HELLO[90:]),
    "a hello": State(443, HELLO, len(HELLO), b"\x14\x03\x03\0\1\1"),
    "half a head": State(80, GET[:25], 0, GET[25:]),
    "half a first line": State(8080, GET[:5], 0, GET[5:]),
    "kept alive": State(80, GET, len(GET), GET),
    "half of the second head": State(8080, GET + GET[:25], len(GET), GET[25:]),
    "half a body": State(80, POST + b"12345", len(POST) + 5, b"67890"),
    "half a chunk": State(8080, CHUNKS + b"a\r\n12345", len(CHUNKS) + 8, b"67890\r\n0\r\n\r\n"),
    "upgraded": State(80, UPGRADE, len(UPGRADE), b"whatever"),
    "raw": State(8080, b"\0\0\0\x08\x04\xd2\x16\x2f", 8, b"whatever"),
}


class Server:
    """At a.test. Grants upgrades, answers heads, and counts what comes."""

    def __init__(self, rig: Rig) -> None:
        self.arrived: dict[tuple[int, int], int] = {}
        """By connection: its port here and there."""
        self.ended = 0
        self._listeners = [rig.listen(WORLD + "10", port) for port in (80, 443, 8080, 8443)]
        self._lock = threading.Lock()
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,)).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, peer = listener.accept()
            except OSError:
                return
            place = (sock.getsockname()[1], peer[1])
            self.arrived[place] = 0
            threading.Thread(target=self._serve, args=(sock, place)).start()

    def _serve(self, sock: socket.socket, place: tuple[int, int]) -> None:
        with sock, contextlib.suppress(OSError):
            while data := sock.recv(65536):
                self.arrived[place] += len(data)
                if b"Upgrade" in data:
                    sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\n")
                elif data.startswith(b"GET"):
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        with self._lock:
            self.ended += 1

    @property
    def total(self) -> int:
        return sum(self.arrived.copy().values())

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as running:
        running.dns.zone["a.test"] = [WORLD + "10"]
        running.attach("sb1", *RULES)
        yield running


@pytest.fixture
def server(rig: Rig) -> Iterator[Server]:
    rig.policy("sb1", *RULES)
    running = Server(rig)
    yield running
    running.close()


def begun(rig: Rig, server: Server, undo: contextlib.ExitStack) -> dict[str, socket.socket]:
    """A connection in each state."""
    clients = {}
    for name, state in STATES.items():
        clients[name] = undo.enter_context(rig.sandboxes["sb1"].dial("a.test", state.port))
        clients[name].sendall(state.before)
    until(lambda: rig.counters("sb1")["open"] == len(STATES))
    until(lambda: server.total == sum(state.passed for state in STATES.values()))
    return clients


def is_reset(client: socket.socket) -> bool:
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return False


def test_what_was_begun_goes_no_further(rig: Rig, server: Server) -> None:
    with contextlib.ExitStack() as undo:
        for name, client in begun(rig, server, undo).items():
            before = server.total
            client.sendall(STATES[name].behind)
            held = len(STATES[name].before) - STATES[name].passed
            until(lambda before=before, more=held + len(STATES[name].behind): server.total == before + more)
    until(lambda: rig.counters("sb1")["open"] == 0)
    until(lambda: server.ended == len(server.arrived) == len(STATES))
    server.arrived.clear()
    server.ended = 0
    with contextlib.ExitStack() as undo:
        clients = begun(rig, server, undo)
        before = server.total
        rig.policy("sb1", mode="deny")
        assert rig.counters("sb1")["open"] == 0
        for name, client in clients.items():
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                client.sendall(STATES[name].behind)
                assert is_reset(client), name
        until(lambda: server.ended == len(server.arrived))
        assert server.total == before


def test_what_waits_to_be_accepted_is_judged_by_the_policy_of_then(rig: Rig, server: Server) -> None:
    """The proxy stands still; the kernel answers for it, so a client is connected, and sends."""
    box, proxy = rig.sandboxes["sb1"], rig.processes["proxy"]
    address = box.resolve("a.test")
    assert address is not None
    for closes in (False, True):
        if closes:
            until(lambda: rig.counters("sb1")["open"] == 0)
        proxy.send_signal(signal.SIGSTOP)
        try:
            with contextlib.ExitStack() as undo:
                clients = [undo.enter_context(box.dial(address, 80)) for _ in range(20)]
                for client in clients:
                    client.sendall(GET)
                change = threading.Thread(target=rig.policy, args=("sb1", *(() if closes else RULES)))
                change.start()
                proxy.send_signal(signal.SIGCONT)
                change.join()
                if not closes:
                    assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * 20
                    continue
                assert all(map(is_reset, clients))
        finally:
            proxy.send_signal(signal.SIGCONT)
    assert box.is_reset(address, 80, GET)
