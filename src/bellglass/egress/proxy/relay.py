"""Bytes from one socket to another: nothing is kept in between, so a connection costs no memory of ours.

The bytes are looked at where they are (MSG_PEEK, into one buffer for all), sent, and only what was sent is taken off
(MSG_TRUNC takes without a copy). What the receiver doesn't take stays in the sender's window.
"""

from __future__ import annotations

import socket
import struct

from bellglass import http1
from bellglass.egress.loop import Loop
from bellglass.egress.proxy import head
from bellglass.http1 import BadHead

BUFFER_BYTES = 256 * 1024

_buffer = bytearray(BUFFER_BYTES)
_view = memoryview(_buffer)


class Ended(Exception):
    """The stream ended where something was still to come."""


class Counter:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def peek(sock: socket.socket, most: int) -> memoryview:
    """What is there, not taken off; empty at the stream's end. Valid until the next await. Raises BlockingIOError."""
    return _view[: sock.recv_into(_view, min(most, BUFFER_BYTES), socket.MSG_PEEK)]


def discard(sock: socket.socket, count: int) -> None:
    """Take bytes that were peeked."""
    while count:
        count -= sock.recv_into(_view, min(count, BUFFER_BYTES), socket.MSG_TRUNC)


async def pump(
    loop: Loop, source: socket.socket, target: socket.socket, counter: Counter, limit: int | None = None
) -> None:
    """Until the source's end, or exactly `limit` bytes. Raises OSError of either side, Ended before the limit."""
    left = BUFFER_BYTES if limit is None else limit
    while left:
        try:
            size = source.recv_into(_view, min(left, BUFFER_BYTES), socket.MSG_PEEK)
        except BlockingIOError:
            await loop.readable(source)
            continue
        if not size:
            if limit is None:
                return
            raise Ended
        try:
            sent = target.send(_view[:size], socket.MSG_NOSIGNAL)
        except BlockingIOError:
            await loop.writable(target)
            continue
        discard(source, sent)
        counter.count += sent
        if limit is not None:
            left -= sent
        if sent < size:
            # Full: at once there is room for little, and all of what was looked at would be looked at again for it.
            await loop.writable(target)
        else:
            await loop.breathe()


async def pass_on(
    loop: Loop, source: socket.socket, target: socket.socket, data: bytes, counter: Counter, *, more: bool = False
) -> None:
    """Bytes that were peeked, as they were read: their sender may have changed them since. Raises OSError."""
    discard(source, len(data))
    counter.count += len(data)
    await send_all(loop, target, data, more=more)


async def send_all(loop: Loop, target: socket.socket, data: bytes, *, more: bool = False) -> None:
    """`more`: the rest of the packet follows at once."""
    view = memoryview(data)
    while view:
        try:
            view = view[target.send(view, socket.MSG_NOSIGNAL | (socket.MSG_MORE if more else 0)) :]
        except BlockingIOError:
            await loop.writable(target)


async def peek_until(
    loop: Loop, source: socket.socket, end: bytes, most: int, deadline: float | None = None
) -> bytes | None:
    """Up to and with `end`, still not taken; None when the stream ends before its first byte. `deadline` counts from
    the first byte on. Raises Ended, BadHead beyond `most` bytes or for a line that ends without CR, TimeoutError."""
    seen = -1
    while True:
        await loop.breathe()
        try:
            found = peek(source, most)
        except BlockingIOError:
            await loop.readable(source)
            continue
        if not found:
            return None
        if len(found) == seen:
            if at_end(source):
                raise Ended
            await loop.readable(source, deadline)
            continue
        at = _buffer.find(end, max(0, seen - len(end)), len(found))
        if at >= 0:
            return bytes(found[: at + len(end)])
        if _bare_newline(max(seen, 0), len(found)):
            raise BadHead("a line that ends without CR")
        if len(found) >= most:
            raise BadHead(f"no end in {most} bytes")
        seen = len(found)


def _bare_newline(start: int, size: int) -> bool:
    """In what has come since: a head that comes byte by byte is looked through once."""
    at = _buffer.find(b"\n", start, size)
    while at >= 0:
        if at == 0 or _buffer[at - 1] != 0x0D:
            return True
        at = _buffer.find(b"\n", at + 1, size)
    return False


def at_end(sock: socket.socket) -> bool:
    """Whether the peer has shut its side: what is there is all there will be."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _CLOSED_BY_PEER


_CLOSED_BY_PEER = (7, 8, 9, 11)  # TCP_CLOSE CLOSE_WAIT LAST_ACK CLOSING


async def copy_chunks(loop: Loop, source: socket.socket, target: socket.socket, counter: Counter) -> None:
    """A chunked body with its trailers, framed anew. Raises OSError, Ended, BadHead, TimeoutError."""
    while True:
        await loop.breathe()
        line = await _take_line(loop, source)
        size = http1.chunk_size(line)
        if not size:
            break
        await send_all(loop, target, b"%x\r\n" % size, more=True)
        await pump(loop, source, target, counter, size)
        if await _take_line(loop, source):
            raise BadHead("a chunk that is longer than its size")
        await send_all(loop, target, b"\r\n")
    lines: list[bytes] = []
    while line := await _take_line(loop, source):
        lines.append(line)
        if len(lines) > http1.MAX_FIELDS or sum(map(len, lines)) > http1.MAX_HEAD_BYTES:
            raise BadHead("trailers without end")
        await loop.breathe()
    await send_all(loop, target, http1.write_trailers(head.trailers(lines)))


async def _take_line(loop: Loop, source: socket.socket) -> bytes:
    line = await peek_until(loop, source, b"\r\n", 4096)
    if line is None:
        raise Ended
    discard(source, len(line))
    return line[:-2]


def reset_on_close(sock: socket.socket) -> None:
    """Closing it sends RST, whatever is unsent."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
