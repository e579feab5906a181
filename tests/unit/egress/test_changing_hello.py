"""A hello that its sender changes once it was read: sendfile(2) sends a file's pages, not a copy of them."""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bellglass.egress.proxy import hellos
from bellglass.egress.proxy.outcomes import Refused
from bellglass.egress.proxy.relay import Counter, Ended
from tests.security.client_hellos import hello, in_records, server_name
from tests.unit.egress.conftest import LoopThread, pair

UNKNOWN = 0xFAFA
"""An extension that is only long."""


class Way:
    """From a client to a server through `hellos.send`; `at` is a byte of a file's page that the client sends."""

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self.client, self.inner = pair()
        self.outer, self.server = pair(narrow=True)
        for sock in (self.inner, self.outer):
            sock.setblocking(False)
        self.sent = Counter()
        self.error: Exception | None = None
        self.file = os.memfd_create("page")
        os.truncate(self.file, mmap.PAGESIZE)
        self.page = mmap.mmap(self.file, mmap.PAGESIZE)
        thread.call(lambda: thread.loop.spawn(self._send(), "sb1"))

    async def _send(self) -> None:
        try:
            await hellos.send(self.thread.loop, self.inner, self.outer, "a.test", self.sent)
        except (Refused, Ended, OSError) as error:
            self.error = error
        self.outer.shutdown(socket.SHUT_WR)

    def send(self, data: bytes, at: int) -> None:
        """The byte there from the page, the others as they are."""
        self.client.sendall(data[:at])
        self.page[0] = data[at]
        os.sendfile(self.client.fileno(), self.file, 0, 1)
        self.client.sendall(data[at + 1 :])

    def wait(self, condition: Callable[[], bool]) -> None:
        """And until the loop has nothing left to do about it."""
        deadline, pause = time.monotonic() + 20, threading.Event()
        while not condition():
            assert time.monotonic() < deadline
            pause.wait(0.005)
        for _ in range(3):
            self.thread.call(lambda: None)

    def received(self) -> bytes:
        data = b""
        while piece := self.server.recv(65536):
            data += piece
        return data

    def close(self) -> None:
        self.page.close()
        os.close(self.file)
        for one in (self.client, self.inner, self.outer, self.server):
            one.close()


@pytest.fixture
def way(thread: LoopThread) -> Iterator[Way]:
    made = Way(thread)
    yield made
    made.close()


def has(sock: socket.socket, count: int) -> bool:
    try:
        return len(sock.recv(65536, socket.MSG_PEEK | socket.MSG_DONTWAIT)) >= count
    except BlockingIOError:
        return False


def test_one_that_waits_for_room_goes_on_as_it_was_read(way: Way) -> None:
    """Its first part has gone, the name behind it has not yet."""
    data = hello(None, (UNKNOWN, bytes(15_000)), server_name("a.test"))
    way.send(data, data.index(b"a.test"))
    way.wait(lambda: has(way.server, 1))
    assert not has(way.server, len(data) // 2)
    way.page[0] = ord("e")
    way.client.shutdown(socket.SHUT_WR)
    assert way.received() == data
    assert way.error is None and way.sent.count == len(data)


@pytest.mark.parametrize("changed", [False, True])
def test_one_that_comes_in_pieces_is_judged_as_a_whole(way: Way, changed: bool) -> None:
    first, *rest = in_records(hello("a.test", (UNKNOWN, bytes(500))), 600)
    way.send(first, first.index(b"a.test"))
    way.wait(lambda: has(way.inner, len(first)))
    if changed:
        way.page[0] = ord("e")
    way.client.sendall(b"".join(rest))
    way.client.shutdown(socket.SHUT_WR)
    assert way.received() == (b"" if changed else first + b"".join(rest))
    if changed:
        assert isinstance(way.error, Refused)
        assert (way.error.reason, way.error.host) == ("sni_mismatch", "e.test")
