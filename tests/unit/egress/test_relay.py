"""Bytes through the relay to a reader that takes little at a time."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from bellglass.egress.proxy import relay
from bellglass.egress.proxy.relay import Counter
from tests.unit.egress.conftest import LoopThread, pair


@pytest.mark.parametrize("limited", [False, True])
def test_a_narrow_reader_gets_all_of_it_once(thread: LoopThread, limited: bool) -> None:
    """It has room for a part of each piece alone, and stops for a while in the middle."""
    data = os.urandom(3 << 20)
    client, inner = pair()
    outer, server = pair(narrow=True)
    for sock in (inner, outer):
        sock.setblocking(False)
    counter = Counter()

    async def pump() -> None:
        await relay.pump(thread.loop, inner, outer, counter, len(data) if limited else None)
        outer.shutdown(socket.SHUT_WR)

    thread.call(lambda: thread.loop.spawn(pump(), "sb1"))

    def send() -> None:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    received = bytearray()
    while len(received) < len(data) // 2:
        received += server.recv(1024)
    counts = {thread.call(lambda: counter.count) for _ in range(50)}
    assert max(counts) < len(data), "the reader has stopped, so the relay has as well"
    while piece := server.recv(65536):
        received += piece
    sender.join(20)
    assert received == data and counter.count == len(data)
    for sock in (client, inner, outer, server):
        sock.close()
