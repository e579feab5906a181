"""An HTTP/1.x connection under a rule by name: the Host of every request is checked, not the first one's alone.

Requests go on one by one as they are read; what comes back is relayed by its own framing, so that it is known which
response is whose. That matters for one thing: only after a 101 to an upgrade may bytes pass unread.
"""

from __future__ import annotations

import socket
from collections import deque
from time import monotonic
from typing import NamedTuple

from bellglass import http1
from bellglass.egress.loop import Loop, Signal
from bellglass.egress.proxy import classify, head, relay
from bellglass.egress.proxy.head import Request
from bellglass.egress.proxy.relay import Counter, Ended
from bellglass.http1 import CHUNKED, UNTIL_CLOSE, BadHead

HEAD_TIMEOUT_S = 30.0
"""From a head's first byte to its last."""
MAX_PIPELINED = 32


async def first_request(loop: Loop, client: socket.socket, name: str, port: int) -> None:
    """Waits for the first request and checks it, without taking it. Raises BadHead, Ended, TimeoutError."""
    await _look_at_request(loop, client, name, port)


async def _look_at_request(loop: Loop, client: socket.socket, name: str, port: int) -> tuple[Request, int] | None:
    """The next request and the bytes of its head; None at the stream's end."""
    deadline = None
    blank = False
    seen = 0
    while True:
        try:
            start = bytes(relay.peek(client, classify.MAX_LINE_BYTES + 1))
        except BlockingIOError:
            await loop.readable(client)
            continue
        if not start:
            return None
        deadline = deadline or monotonic() + HEAD_TIMEOUT_S
        if start[:2] == b"\r\n" and not blank:
            relay.discard(client, 2)  # some clients end a body with one line too many
            blank = True
            continue
        if len(start) == seen:
            if relay.at_end(client):
                raise Ended
            await loop.readable(client, deadline)
            continue
        seen = len(start)
        kind = classify.classify(start)
        if kind == classify.HTTP:
            break
        if kind is not None:
            raise BadHead("not HTTP")  # at once: it may never send the end of a head
    found = await relay.peek_until(loop, client, http1.END, http1.MAX_HEAD_BYTES, deadline)
    return None if found is None else (head.request(found, name, port), len(found))


class _Expected(NamedTuple):
    request: Request
    answered: Signal


class Exchange:
    """`requests` and `responses` run side by side, each a task of its own, until the streams end or one raises."""

    def __init__(
        self,
        loop: Loop,
        client: socket.socket,
        upstream: socket.socket,
        name: str,
        port: int,
        sent: Counter,
        received: Counter,
    ) -> None:
        self._loop = loop
        self._client, self._upstream = client, upstream
        self._name, self._port = name, port
        self._sent, self._received = sent, received
        self._expected: deque[_Expected] = deque()
        self._changed = Signal(loop)
        self._switched = False
        self._over = False  # the last response goes on until the connection closes

    async def requests(self) -> None:
        """Raises OSError, BadHead, Ended, TimeoutError."""
        while True:
            looked = await _look_at_request(self._loop, self._client, self._name, self._port)
            if looked is None:
                return
            if self._over:
                raise BadHead("a request behind the last response")
            request, length = looked
            while len(self._expected) >= MAX_PIPELINED:
                self._changed.clear()
                await self._changed.wait()
            relay.discard(self._client, length)
            expected = _Expected(request, Signal(self._loop))
            self._expected.append(expected)
            self._changed.set()
            written = http1.write_request(request.plain)
            self._sent.count += len(written)
            await relay.send_all(self._loop, self._upstream, written, more=request.length > 0)
            if request.length == CHUNKED:
                await relay.copy_chunks(self._loop, self._client, self._upstream, self._sent)
            else:
                await relay.pump(self._loop, self._client, self._upstream, self._sent, request.length)
            if request.upgrade:
                await expected.answered.wait()
                if self._switched:
                    await relay.pump(self._loop, self._client, self._upstream, self._sent)
                    return

    async def responses(self) -> None:
        """Raises OSError, BadHead, Ended, TimeoutError."""
        loop, client, upstream = self._loop, self._client, self._upstream
        while not self._over:
            try:
                found = await relay.peek_until(loop, upstream, http1.END, http1.MAX_HEAD_BYTES)
                if found is None:
                    return
                response = head.response(found)
            except BadHead:
                break  # passed on as it is, and the last
            if not self._expected:
                break  # nobody asked for it: alike
            expected = self._expected[0]
            await relay.pump(loop, upstream, client, self._received, len(found))
            if response.status == 101:
                self._switched = expected.request.upgrade
                expected.answered.set()
                break
            if response.status < 200:
                continue
            if expected.request.plain.method == b"HEAD":
                pass
            elif response.length == CHUNKED:
                await relay.copy_chunks(loop, upstream, client, self._received)
            elif response.length == UNTIL_CLOSE:
                break
            else:
                await relay.pump(loop, upstream, client, self._received, response.length)
            self._expected.popleft()
            expected.answered.set()
            self._changed.set()
        self._over = not self._switched
        await relay.pump(loop, upstream, client, self._received)
