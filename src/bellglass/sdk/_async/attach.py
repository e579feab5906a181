"""Attached to a terminal: its output as it comes, what is typed, its size; over connections that break.

One reads, others write and resize (tasks, or threads of the sync form). Whoever reads also makes a broken connection
again, from the byte that came last; what was typed meanwhile follows, and nothing is typed twice.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Self

from bellglass.errors import (
    BellglassError,
    ConnectionFailed,
    LimitExceeded,
    NodeUnavailable,
    NotFound,
    StreamInterrupted,
)
from bellglass.ids import new_ulid
from bellglass.model import Execution as ExecutionInfo
from bellglass.sdk._async._compat import AsyncLock, sleep
from bellglass.sdk._async.gone import meanwhile
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._async.websocket import AsyncWebSocket
from bellglass.sdk._commands import as_bytes, terminal_size
from bellglass.sdk._http import target
from bellglass.sdk._patience import RECONNECT_S, Patience
from bellglass.sdk._typed import MOST_BYTES, PIECE_BYTES, Typed, message_of

ACK_LOOK_S = 0.02
_BROKEN = (ConnectionFailed, NodeUnavailable, StreamInterrupted)


class AsyncAttachment:
    """`await execution.attach()`. To be closed: the program goes on."""

    def __init__(self, transport: AsyncTransport, execution_path: str) -> None:
        self.offset = 0
        """Of the output that comes next."""
        self.skipped_bytes = 0
        """Of output that the log had lost before it was read."""
        self.reconnects = 0
        self.ended: ExecutionInfo | None = None
        """Its record, once it has ended."""
        self._transport = transport
        self._path = f"{execution_path}/attach"
        self._client = new_ulid()
        self._socket: AsyncWebSocket | None = None
        self._typed = Typed()
        self._size: dict[str, int] | None = None
        self._size_sent: dict[str, int] | None = None
        self._lock = AsyncLock()
        self._closed = self._failed = False

    @classmethod
    async def connect(cls, transport: AsyncTransport, execution_path: str, *, offset: int, live: bool) -> Self:
        made = cls(transport, execution_path)
        made.offset = offset
        await made._connect(live=live)
        return made

    async def read(self) -> bytes | None:
        """The output that follows; None once the execution has ended (`ended` is its record) or this was closed.

        Raises StreamInterrupted when a broken connection could not be made again, and the error that ended it."""
        while self.ended is None and not self._closed:
            socket = self._socket
            try:
                message = await socket.receive() if socket is not None else None
                if message is None:
                    if self._closed:
                        break
                    raise StreamInterrupted("the connection ended before the execution did")
            except _BROKEN:
                if self._closed:
                    break
                await self._again()
                continue
            if isinstance(message, bytes):
                self.offset += len(message)
                return message
            await self._told(message_of(message))
        return None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (data := await self.read()) is not None:
            yield data

    async def write(self, data: str | bytes) -> None:
        """Type it. Waits while 256 KiB of what was typed are not in the terminal: somebody has to read meanwhile.
        Raises LimitExceeded where it would wait for a connection that could not be made again."""
        raw = as_bytes(data)
        for start in range(0, len(raw), PIECE_BYTES):
            part = raw[start : start + PIECE_BYTES]
            await self._room()  # without the lock: who reads needs it to connect again
            async with self._lock:
                self._typed.add(part)
                await self._send(part)

    async def resize(self, columns: int, rows: int) -> None:
        """Give the terminal this size."""
        self._size = terminal_size((columns, rows))
        async with self._lock:
            await self._send_size()

    async def aclose(self) -> None:
        """Leave it: the program goes on, and waits for nobody. Safe to repeat, and while another task or thread reads:
        that one ends."""
        self._closed = True
        socket = self._socket
        if socket is not None:
            await socket.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- inside -----------------------------------------------------------------------------------------

    async def _connect(self, *, live: bool = False) -> None:
        query = {"offset": None if live else self.offset, "live": live or None, "client": self._client}
        socket = await AsyncWebSocket.connect(self._transport, target(self._path, query))
        try:
            first = await socket.receive()
            told = message_of(first) if isinstance(first, str) else {}
            if told.get("type") != "started":
                raise StreamInterrupted("the connection ended before it began")
            async with self._lock:
                self.offset = int(told["offset"])
                rest = self._typed.attached(told)
                self._socket, self._size_sent = socket, None
                await self._send_size()
                for start in range(0, len(rest), PIECE_BYTES):
                    await self._send(rest[start : start + PIECE_BYTES])
        except BaseException:
            self._socket = None
            await socket.aclose()
            raise
        if self._closed:
            await socket.aclose()

    async def _again(self) -> None:
        """Raises StreamInterrupted when it fails for RECONNECT_S, SandboxGone where it was deleted meanwhile, and what
        else the server says against it."""
        await self._drop()
        patience = Patience()
        while not self._closed:
            try:
                await self._connect()
                self.reconnects += 1
                return
            except NotFound as error:
                raise meanwhile(error) from None
            except _BROKEN as error:
                delay_s = patience.delay_s()
                if delay_s is None:
                    self._failed = True
                    raise StreamInterrupted(
                        f"the server was away for {RECONNECT_S:.0f} s", hint="attach again: the program goes on"
                    ) from error
                await sleep(delay_s)

    async def _room(self) -> None:
        """Until one piece more may be typed."""
        while len(self._typed) > MOST_BYTES - PIECE_BYTES and self.ended is None and not self._closed:
            if self._failed:
                raise LimitExceeded(
                    f"{len(self._typed)} bytes were typed while the connection was broken",
                    hint="whether the program got them is not known; attach again",
                )
            await sleep(ACK_LOOK_S)

    async def _drop(self) -> None:
        socket = self._socket
        if socket is not None:
            await socket.aclose()  # first: whoever sits in a send with the lock is let go by it
            async with self._lock:
                self._socket = None

    async def _told(self, told: dict[str, Any]) -> None:
        if told.get("type") == "input":
            self._typed.acknowledged(told)  # without the lock: a writer may wait for the program with it
        elif told.get("type") == "skipped":
            self.skipped_bytes += int(told["bytes"])
            self.offset = int(told["offset"]) + int(told["bytes"])
        elif told.get("type") == "exit":
            self.ended = ExecutionInfo.from_json(told["execution"])
            await self.aclose()

    async def _send(self, data: bytes | str) -> None:
        """With the lock. What does not get through is sent again by whoever reads."""
        if self._socket is not None and data:
            try:
                await self._socket.send(data)
            except BellglassError as error:
                if not isinstance(error, _BROKEN):
                    raise

    async def _send_size(self) -> None:
        if self._size is not None and self._size != self._size_sent:
            await self._send(json.dumps({"type": "resize", **self._size}))
            self._size_sent = self._size
