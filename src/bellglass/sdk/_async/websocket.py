"""A WebSocket to the server: messages both ways over a connection that the transport's pool opened.

One may receive while another sends (tasks, or threads of the sync form). Pings are answered by whoever receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Self

from bellglass.errors import BellglassError, InvalidRequest
from bellglass.sdk._async._compat import AsyncLock, acquired, half_close, hang_up
from bellglass.sdk._async.transport import AsyncResponse, AsyncTransport
from bellglass.sdk._http import FOREIGN, SMALL_READ
from bellglass.sdk._websocket import (
    BINARY,
    CLOSE,
    DROPPED,
    MAX_SENT_BYTES,
    NORMAL,
    PING,
    PONG,
    TEXT,
    Message,
    Reader,
    check_handshake,
    close_error,
    encode,
    encode_close,
    handshake_headers,
    new_key,
    told_error,
)

LEAVE_S = 3.0
LAST_WORD_S = 1.0


class AsyncWebSocket:
    """`await AsyncWebSocket.connect(transport, target)`. To be closed."""

    def __init__(self, response: AsyncResponse) -> None:
        self.close_code: int | None = None
        """Once the server has closed it: why. 1006 for a connection that broke."""
        self._response = response
        self._stream: Any = response.network_stream
        self._send = self._stream.get_extra_info("send") or self._stream.write
        self._lock = AsyncLock()
        self._reader = Reader()
        self._messages: deque[Message] = deque()
        self._failure: BellglassError | None = None
        self._closed = False
        self._reading = False

    @classmethod
    async def connect(cls, transport: AsyncTransport, where: str) -> Self:
        """Raises what an HTTP request raises, and ClientError where WebSockets don't pass."""
        key = new_key()
        response = await transport.open("GET", where, headers=handshake_headers(key), read_timeout_s=30.0)
        try:
            check_handshake(response.status, response.headers.get("sec-websocket-accept"), key)
            return cls(response)
        except BaseException:
            await response.aclose()
            raise

    async def send(self, data: bytes | str) -> None:
        """A message of at most 512 KiB; waits for a server that is slow to take it. Raises StreamInterrupted."""
        payload, opcode = (data.encode(), TEXT) if isinstance(data, str) else (bytes(data), BINARY)
        if len(payload) > MAX_SENT_BYTES:
            raise InvalidRequest(f"a message of {len(payload)} bytes is over {MAX_SENT_BYTES}")
        if self._closed or self.close_code is not None:
            raise self._failure or close_error(DROPPED, "") or AssertionError
        await self._write(encode(opcode, payload))

    async def receive(self) -> bytes | str | None:
        """The next message; None when the server has closed as it should. Raises StreamInterrupted where the connection
        broke, and the error with which the server ended it."""
        while True:
            while self._messages:
                message = self._messages.popleft()
                if message.opcode == PING:
                    await self._write(encode(PONG, message.payload), quiet=True)
                elif message.opcode == CLOSE:
                    await self._ended(message)
                elif message.opcode == BINARY:
                    return message.payload
                else:
                    text = message.payload.decode("utf-8", "replace")
                    error = told_error(text)
                    if error is None:
                        return text
                    self._failure = error
            if self.close_code is not None or self._closed:
                if self._failure is not None:
                    raise self._failure
                return None
            await self._read()

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        while (message := await self.receive()) is not None:
            yield message

    async def aclose(self, code: int = NORMAL) -> None:
        """Say so and hang up. Safe to repeat, and while another task or thread receives: that one ends."""
        if self._closed:
            return
        self._closed = True
        if self.close_code is None:
            await self._say_close(code)
        hang_up(self._stream)
        if not self._reading:  # else it is the reader's: a descriptor closed under it would leave it waiting
            await self._response.aclose()

    async def leave(self) -> None:
        """As `aclose`, but so that the server hears of it for sure, also one that waits for this side to read: what it
        had under way is read and dropped. While another receives, that one does so, until the server has hung up."""
        if self._closed or self.close_code is not None or self._failure is not None:
            await self.aclose()
            return
        await self._say_close(NORMAL)
        self._closed = True
        half_close(self._stream)
        if not self._reading:
            try:
                while await self._stream.read(SMALL_READ, timeout=LEAVE_S):
                    pass
            except (*FOREIGN, OSError):
                pass  # it takes too long, or the connection broke: hung up on either way
            hang_up(self._stream)
            await self._response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _write(self, data: bytes, *, quiet: bool = False) -> None:
        try:
            async with self._lock:
                await self._send(data)
        except (*FOREIGN, OSError):
            if not quiet:
                raise close_error(DROPPED, "") or AssertionError from None

    async def _say_close(self, code: int) -> None:
        """Not behind one who waits for a server that takes nothing, for a minute maybe: hanging up frees that one."""
        if not await acquired(self._lock, LAST_WORD_S):
            return
        try:
            await self._send(encode_close(code))
        except (*FOREIGN, OSError):
            pass  # it broke meanwhile
        finally:
            self._lock.release()

    async def _read(self) -> None:
        self._reading = True
        try:
            data = await self._stream.read(SMALL_READ)
        except (*FOREIGN, OSError):
            data = b""
        finally:
            self._reading = False
            if self._closed:
                await self._response.aclose()
        if data:
            self._messages += self._reader.feed(data)
        elif not self._closed:
            await self._ended(Message(CLOSE, code=DROPPED))

    async def _ended(self, message: Message) -> None:
        self.close_code = message.code
        self._failure = self._failure or close_error(message.code, message.reason)
        if message.code != DROPPED:
            await self._write(encode_close(NORMAL), quiet=True)
