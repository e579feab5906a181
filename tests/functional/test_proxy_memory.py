"""What the kernel holds for a sandbox's connections: bounded, however fast they were and whatever is left unread."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from bellglass.testing.egress import WORLD, Rig

CONNECTIONS = 64
FAST_S = 3.0
STILL_S = 0.5
MOST_MIB = 200
"""With buffers that grow for all of them it was more than twice as much."""
SIOCOUTQ = 0x5411


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as running:
        running.dns.zone["a.test"] = [WORLD + "10"]
        running.attach("sb1", {"host": "a.test", "ports": [22]})
        yield running


class Stream:
    """A connection through the proxy, with both of its ends."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.sent = self.read = 0
        for sock in (client, server):
            sock.setblocking(False)

    def write(self, data: bytes) -> None:
        try:
            self.sent += self.server.send(data)
        except BlockingIOError:
            pass

    def take(self, buffer: bytearray) -> None:
        try:
            self.read += self.client.recv_into(buffer)
        except BlockingIOError:
            pass

    @property
    def held(self) -> int:
        """Bytes that have left the server's machine and were not read."""
        (own,) = struct.unpack("i", fcntl.ioctl(self.server, SIOCOUTQ, b"\0" * 4))
        return self.sent - own - self.read


def test_what_is_left_unread_is_bounded(rig: Rig) -> None:
    streams: list[Stream] = []
    with rig.listen(WORLD + "10", 22) as listener:
        for _ in range(CONNECTIONS):
            client = rig.sandboxes["sb1"].dial("a.test", 22)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # its own is charged to the sandbox
            streams.append(Stream(client, listener.accept()[0]))
    try:
        data, buffer, poll = b"x" * (1 << 18), bytearray(1 << 18), select.epoll()
        by_fd = {}
        for stream in streams:
            poll.register(stream.server, select.EPOLLOUT)
            poll.register(stream.client, select.EPOLLIN)
            by_fd[stream.server.fileno()] = by_fd[stream.client.fileno()] = stream
        clients = {stream.client.fileno() for stream in streams}
        end = time.monotonic() + FAST_S
        while time.monotonic() < end:
            for fd, _ in poll.poll(0.1):
                by_fd[fd].take(buffer) if fd in clients else by_fd[fd].write(data)
        moved = sum(stream.read for stream in streams)
        assert moved > 100 << 20, "it was never fast"
        for stream in streams:
            poll.unregister(stream.client)
        while ready := poll.poll(STILL_S):
            for fd, _ in ready:
                by_fd[fd].write(data)
        assert sum(stream.held for stream in streams) >> 20 < MOST_MIB
    finally:
        for stream in streams:
            stream.client.close()
            stream.server.close()
