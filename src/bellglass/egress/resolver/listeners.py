"""The two listeners of one sandbox: DNS over UDP and over TCP, with bounds on what it may ask and hold open.

All of it runs in the sandbox's own turn of the loop. Beyond its rate the listeners are not read from: what a flood
sends then is dropped by the kernel in the sandbox's own socket, and costs nobody else anything.
"""

from __future__ import annotations

import socket
import struct
from time import monotonic

from bellglass.egress.log import log
from bellglass.egress.loop import Loop, Task
from bellglass.egress.rate import Bucket
from bellglass.egress.resolver.wire import MAX_QUERY_BYTES
from bellglass.egress.resolver.zone import Zone

PER_SECOND, BURST = 1000.0, 2000.0
"""Queries of one sandbox, and whatever else makes work: connections, pieces of queries."""
QUERIES_A_TURN = 8
MAX_CONNECTIONS = 16
IDLE_S = 10.0
SEND_BYTES = 16384
"""The kernel's buffer for one that doesn't read its answers."""
_LINGER_RESET = struct.pack("ii", 1, 0)


class Listeners:
    """Serves both until `close`."""

    def __init__(self, loop: Loop, sandbox: str, udp: socket.socket, tcp: socket.socket, zone: Zone) -> None:
        self._loop, self._sandbox, self._zone = loop, sandbox, zone
        self._udp, self._tcp = udp, tcp
        self._bucket = Bucket(PER_SECOND, BURST, monotonic())
        self._connections: dict[socket.socket, Task] = {}
        self._tasks = [loop.spawn(self._serve_udp(), sandbox), loop.spawn(self._serve_tcp(), sandbox)]

    def close(self) -> None:
        for task in [*self._tasks, *self._connections.values()]:
            task.cancel()
        for sock in [self._udp, self._tcp, *self._connections]:
            self._loop.close(sock)
        self._connections.clear()

    def _respond(self, packet: bytes) -> bytes | None:
        try:
            return self._zone.respond(packet)
        except Exception as error:  # noqa: BLE001 - a fault of ours in one query must not end the sandbox's DNS
            log("query failed", sandbox=self._sandbox, error=f"{type(error).__name__}: {error}")
            return None

    async def _pace(self) -> None:
        if not self._bucket.take(monotonic()):
            self._zone.counts["dns_limited"] += 1
            while not self._bucket.take(monotonic()):
                await self._loop.sleep(self._bucket.wait_s(QUERIES_A_TURN))

    async def _serve_udp(self) -> None:
        served = 0
        while True:
            try:
                packet, peer = self._udp.recvfrom(MAX_QUERY_BYTES + 1)
            except BlockingIOError:
                await self._loop.readable(self._udp)
                continue
            except OSError:
                # What an earlier answer met, told late. It is taken with this; were it not, this would be a circle.
                await self._loop.sleep(0.01)
                continue
            await self._pace()
            answer = self._respond(packet)
            if answer is not None:
                try:
                    self._udp.sendto(answer, peer)
                except OSError:
                    pass  # its asker has gone, or reads nothing: it asks again
            served += 1
            if served % QUERIES_A_TURN == 0:
                await self._loop.turn()

    async def _serve_tcp(self) -> None:
        while True:
            await self._pace()
            try:
                sock, _ = self._tcp.accept()
            except BlockingIOError:
                await self._loop.readable(self._tcp)
                continue
            except OSError:
                await self._loop.sleep(0.1)  # no descriptor or memory left: others may give some back
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            if len(self._connections) >= MAX_CONNECTIONS:
                self._zone.counts["dns_limited"] += 1
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
                sock.close()
            else:
                self._connections[sock] = self._loop.spawn(self._serve_connection(sock), self._sandbox)
            await self._loop.turn()

    async def _serve_connection(self, sock: socket.socket) -> None:
        """RFC 7766: queries with their length before them, one after the other."""
        try:
            while True:
                deadline = monotonic() + IDLE_S
                length = int.from_bytes(await self._read(sock, 2, deadline))
                if not 0 < length <= MAX_QUERY_BYTES:
                    return
                packet = await self._read(sock, length, deadline)
                await self._pace()
                answer = self._respond(packet)
                if answer is None:
                    return
                # Small: where it doesn't fit, the other side has not read hundreds of answers.
                if sock.send(len(answer).to_bytes(2) + answer) != len(answer) + 2:
                    return
                await self._loop.turn()
        except (OSError, EOFError):
            return
        finally:
            self._connections.pop(sock, None)
            self._loop.close(sock)

    async def _read(self, sock: socket.socket, count: int, deadline: float) -> bytes:
        """Exactly so many bytes. Raises EOFError, OSError (TimeoutError at the deadline)."""
        read = b""
        while len(read) < count:
            try:
                piece = sock.recv(count - len(read))
            except BlockingIOError:
                await self._loop.readable(sock, deadline)
                await self._pace()  # bytes that come one by one are work too
                continue
            if not piece:
                raise EOFError
            read += piece
        return read
