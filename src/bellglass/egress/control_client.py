"""The node's end of a control socket: connects for ever, asks with ids, hands on events. Needs asyncio, which the two
processes themselves do without."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

from bellglass.egress.control import ControlError, Document, encode, receive, send

log = logging.getLogger("bellglass.network")
RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Waits between tries to connect; the last one repeats."""


class ControlClient:
    """`on_connected(client)` runs after each connect, before `call` of others passes: it attaches everything anew.
    `on_event(event)` is called for each event. `run` is the task that holds the connection; cancel it to end."""

    def __init__(
        self,
        path: Path,
        *,
        on_connected: Callable[[ControlClient], Awaitable[None]],
        on_event: Callable[[Document], None],
    ) -> None:
        self.path = path
        self._on_connected = on_connected
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._link: _Link | None = None
        self._usable = asyncio.Event()

    async def run(self) -> None:
        attempt = 0
        while True:
            try:
                link = _Link(self.path, self._on_event)
            except OSError:
                await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
                attempt += 1
                continue
            try:
                self._link = link
                # A peer that takes the connection and breaks it at once is retried as slowly as one that isn't there.
                await self._on_connected(self)
                attempt = 0
                self._usable.set()
                await link.lost.wait()
            except ControlError:
                attempt += 1
            except Exception:
                # Whatever one sandbox or a peer that was taken over does: the others' policies must get through.
                log.exception("%s: what follows a connect failed, and is done again", self.path.name)
                attempt += 1
            finally:
                self._usable.clear()
                self._link = None
                link.close("the connection has ended")
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])

    @property
    def connected(self) -> bool:
        return self._usable.is_set()

    async def wait_connected(self) -> None:
        await self._usable.wait()

    async def call(self, op: str, *, descriptors: list[int] | None = None, **fields: object) -> Document:
        """The answer's fields. The descriptors stay the caller's. Raises ControlError: the peer's refusal, or `lost`
        when there is no connection or it breaks before the answer; then it is unknown whether it was done."""
        link = self._link
        if link is None:
            raise ControlError("lost", f"{self.path.name}: not connected")
        return await link.call({"id": next(self._ids), "op": op, **fields}, descriptors or [])

    async def collect(self, op: str) -> Document:
        """All of `sandboxes` of an operation that answers in pages: list, counters. Raises ControlError."""
        found: Document = {}
        answer: Document = {"next": ""}
        while "next" in answer:
            answer = await self.call(op, after=answer["next"])
            found |= answer["sandboxes"]
        return found


class _Link:
    """One connection. Raises OSError when nobody listens."""

    def __init__(self, path: Path, on_event: Callable[[Document], None]) -> None:
        self.lost = asyncio.Event()
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Document]] = {}
        self._queue: deque[tuple[bytes, list[int], asyncio.Future[None]]] = deque()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._sock.setblocking(False)
            self._sock.connect(str(path))
        except OSError:
            self._sock.close()
            raise
        # As in guestlink/connection.py: libuv hears of a broken unix socket only through an epoll around it.
        self._watch = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._watch.register(self._sock, select.EPOLLIN)
        self._loop.add_reader(self._watch.fileno(), self._read)

    async def call(self, document: Document, descriptors: list[int]) -> Document:
        data = encode(document)
        if self.lost.is_set():
            raise ControlError("lost", "the connection has ended")
        future: asyncio.Future[Document] = self._loop.create_future()
        self._waiting[document["id"]] = future
        try:
            await self._send(data, descriptors)
            answer = await future
        finally:
            self._waiting.pop(document["id"], None)
        if "error" in answer:
            raise ControlError(str(answer["error"].get("code")), str(answer["error"].get("message")))
        return answer

    async def _send(self, data: bytes, descriptors: list[int]) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        entry = (data, descriptors, done)
        self._queue.append(entry)
        if len(self._queue) == 1:
            self._flush()
        try:
            await done
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):
                self._queue.remove(entry)  # its descriptors are closed as soon as the caller has gone on
            raise

    def _flush(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        while self._queue:
            data, descriptors, done = self._queue[0]
            try:
                send(self._sock, data, descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._flush)
                return
            except OSError as error:
                self.close(str(error))
                return
            self._queue.popleft()
            if not done.done():
                done.set_result(None)

    def _read(self) -> None:
        for _ in range(64):  # a turn's share
            try:
                packet = receive(self._sock)
            except BlockingIOError:
                return
            except (OSError, ControlError) as error:
                self.close(str(error))
                return
            if packet is None:
                self.close("the peer has ended")
                return
            if "event" in packet.document:
                self._on_event(packet.document["event"])
                continue
            future = self._waiting.get(packet.document.get("id", 0))
            if future is not None and not future.done():
                future.set_result(packet.document)

    def close(self, why: str) -> None:
        """Safe to repeat."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._watch.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._watch.close()
        self._sock.close()
        self.lost.set()
        failure = ControlError("lost", why)
        for _, _, done in self._queue:
            if not done.done():
                done.set_exception(failure)
        self._queue.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(failure)
