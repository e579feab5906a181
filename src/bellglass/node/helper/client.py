"""The node's end of the helper's socket: many calls at once, told apart by their ids."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import Callable
from typing import Any

from bellglass.errors import InternalError, from_dict

MAX_MESSAGE_BYTES = 65536
MAX_DESCRIPTORS = 8


class HelperClient:
    """Owns the socket. Made inside a running loop; `close` when done. `on_lost(reason)` is called when the helper has
    died, before anybody who waits for it hears of that."""

    def __init__(self, channel: socket.socket, on_lost: Callable[[str], object] | None = None) -> None:
        channel.setblocking(False)
        channel.set_inheritable(False)
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._sending = asyncio.Lock()
        self._gone: str | None = None
        self._on_lost = on_lost
        self._loop.add_reader(channel, self._read)

    @classmethod
    def from_fd(cls, fd: int, on_lost: Callable[[str], object] | None = None) -> HelperClient:
        """On the descriptor that BELLGLASS_HELPER_FD names."""
        return cls(socket.socket(fileno=fd), on_lost)

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """The operation's result (operations.py lists them); `descriptors` in it are the caller's to close. Raises its
        BellglassError, InternalError when the helper is gone. Cancelling stops the waiting, not the operation."""
        if self._gone is not None:
            raise InternalError(self._gone)
        request_id = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting[request_id] = future
        try:
            message = json.dumps({"id": request_id, "op": op, **fields}).encode()
            async with self._sending:
                await self._send(message)
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                _close(future.result())
            raise
        except OSError as error:
            self._lost(f"the helper is gone: {error}")
            raise InternalError(f"the helper is gone: {error}") from error
        finally:
            self._waiting.pop(request_id, None)

    async def _send(self, message: bytes) -> None:
        while True:
            try:
                self._channel.send(message)
            except BlockingIOError:
                writable = asyncio.Event()
                self._loop.add_writer(self._channel, writable.set)
                try:
                    await writable.wait()
                finally:
                    self._loop.remove_writer(self._channel)
            else:
                return

    def close(self) -> None:
        if self._channel.fileno() != -1:
            self._loop.remove_reader(self._channel)
            self._channel.close()
        self._fail("the helper's socket is closed")

    def _read(self) -> None:
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(
                    self._channel, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError as error:
                message = b""
                self._gone = f"the helper is gone: {error}"
            if not message:
                self._loop.remove_reader(self._channel)
                self._lost(self._gone or "the helper has ended: see its log")
                return
            answer = json.loads(message)
            if descriptors:
                answer["result"]["descriptors"] = descriptors
            future = self._waiting.get(answer["id"])
            if future is None or future.done():
                _close(answer.get("result", {}))  # its caller has stopped waiting
                continue
            if "error" in answer:
                future.set_exception(from_dict(answer))
            else:
                future.set_result(answer["result"])

    def _lost(self, why: str) -> None:
        if self._on_lost is not None:
            self._on_lost(why)
        self._fail(why)

    def _fail(self, why: str) -> None:
        self._gone = why
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(InternalError(why))


def _close(result: dict[str, Any]) -> None:
    for descriptor in result.get("descriptors", ()):
        os.close(descriptor)
