"""A client that goes on changing what it has sent: nothing passes as checked that was not what was read.

sendfile(2) sends the pages of a file, no copy, and between two namespaces no network card copies them: the proxy reads
what stands in the file when it reads. One byte of it is written all the time, in turns as it
must be and as it must not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from bellglass.testing.egress import WORLD, Rig
from tests.security.client_hellos import hello

pytestmark = pytest.mark.root
ADDRESS = WORLD + "10"
PORTS = (80, 443, 8080, 8443)
TIMES = 80
ANSWER = b"HTTP/1.0 200 OK\r\n\r\n"
WRITER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    page = mmap.mmap(file.fileno(), 1)
print("ready", flush=True)
good, bad = int(sys.argv[2]), int(sys.argv[3])
while True:
    page[0] = good
    page[0] = bad
"""


class Case(NamedTuple):
    port: int
    before: bytes
    good: int
    bad: int
    after: bytes


def around(data: bytes, mark: bytes, bad: int, port: int, before: bytes = b"") -> Case:
    """The byte is the mark's first one in the data."""
    at = data.index(mark)
    return Case(port, before + data[:at], data[at], bad, data[at + 1 :])


ALLOWED, OTHER = hello("a.test"), hello("e.test")
REQUEST = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
CASES = {
    "the first hello": around(ALLOWED, b"a.test", ord("e"), 443),
    "the first hello, at another port": around(ALLOWED, b"a.test", ord("e"), 8443),
    "a second hello": around(ALLOWED, b"a.test", ord("e"), 443, ALLOWED),
    "data that becomes a second hello": Case(443, ALLOWED, 0x17, 0x16, OTHER[1:]),
    "a change of cipher spec that becomes one": Case(443, ALLOWED, 0x14, 0x16, OTHER[1:]),
    "a handshake's message that becomes one": Case(443, ALLOWED + OTHER[:5], 2, 1, OTHER[6:]),
    "a request": around(REQUEST, b"a.test", ord("e"), 80),
    "a second request": around(REQUEST, b"a.test", ord("e"), 80, REQUEST),
    "bytes of no protocol that become a request": Case(
        8080, b"", 0, ord("G"), b"ET / HTTP/1.1\r\nHost: e.test\r\n\r\n"
    ),
    "bytes of no protocol that become a hello": Case(8443, b"", 0, 0x16, OTHER[1:]),
}


class Server:
    """Keeps whole streams, of each port in order, and answers each at its end."""

    def __init__(self, rig: Rig) -> None:
        self.streams: dict[int, list[bytes]] = {port: [] for port in PORTS}
        self._listeners = [rig.listen(ADDRESS, port) for port in PORTS]
        pairs = zip(PORTS, self._listeners, strict=True)
        self._threads = [threading.Thread(target=self._serve, args=pair) for pair in pairs]
        for thread in self._threads:
            thread.start()

    def _serve(self, port: int, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            found = b""
            with sock, contextlib.suppress(ConnectionResetError, BrokenPipeError):
                sock.settimeout(20)
                try:
                    while data := sock.recv(65536):
                        found += data
                finally:
                    self.streams[port].append(found)
                sock.sendall(ANSWER)

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self._threads:
            thread.join(20)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.dns.zone["a.test"] = [ADDRESS]
        made.attach("sb1", {"host": "a.test", "ports": list(PORTS)})
        yield made


@pytest.fixture(scope="module")
def server(rig: Rig) -> Iterator[Server]:
    made = Server(rig)
    yield made
    made.close()


def passes(rig: Rig, address: str, case: Case, file: int) -> bool:
    with rig.sandboxes["sb1"].dial(address, case.port) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            client.sendall(case.before)
            os.sendfile(client.fileno(), file, 0, 1)
            client.sendall(case.after)
            client.shutdown(socket.SHUT_WR)
            return client.recv(65536) == ANSWER
        except TimeoutError:
            raise
        except OSError:  # reset, at any of these
            return False


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_passes_is_what_was_read(rig: Rig, server: Server, case: Case) -> None:
    address = rig.sandboxes["sb1"].resolve("a.test")
    assert address is not None
    streams = server.streams[case.port]
    good, bad = (case.before + bytes([byte]) + case.after for byte in (case.good, case.bad))
    with tempfile.NamedTemporaryFile() as file:
        for byte, allowed in ((case.good, True), (case.bad, False)):
            os.pwrite(file.fileno(), bytes([byte]), 0)
            streams.clear()
            assert passes(rig, address, case, file.fileno()) is allowed
            assert (good in streams) is allowed and bad not in streams
        streams.clear()
        argv = [sys.executable, "-c", WRITER, file.name, str(case.good), str(case.bad)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
            try:
                assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
                outcomes = {passes(rig, address, case, file.fileno()) for _ in range(TIMES)}
            finally:
                writer.kill()
    assert outcomes == {True, False}, "the byte did change"
    assert good in streams
    began_bad = [stream for stream in streams if stream.startswith(bad[: len(case.before) + 1])]
    assert began_bad == []
