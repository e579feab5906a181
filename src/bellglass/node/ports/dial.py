"""One connection to a port of a sandbox: its agent dials, bytes go both ways under windows, each way has its end.

It does not survive its link: the agent resets it, both sides hear AgentLost. A silent connection is kept for as long as
both ends keep it; how many there may be is the agent's limit.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from bellglass.errors import AgentLost, BellglassError, LimitExceeded, NotSupported, PortUnreachable
from bellglass.node.guestlink.session import LINK_WAIT_S
from bellglass.node.guestlink.stream import GuestStream
from bellglass.node.live import LiveSandbox
from bellglass.wire import guest
from bellglass.wire.frames import HEADER, MAX_DATA, Frame, FrameError
from bellglass.wire.guest import STDIN, STDOUT, WINDOW_BYTES, GuestFailure, GuestType

CONNECT_S = 5.0
ACK_STEP_BYTES = WINDOW_BYTES // 4
_JOIN_BELOW_BYTES = 16 * 1024
_OFFSET = struct.Struct("<Q")


class DialStream(GuestStream):
    """`async with DialStream(live, port) as connection:`; leaving before both ends have come resets it."""

    def __init__(self, live: LiveSandbox, port: int) -> None:
        self.port = port
        self._live = live
        self._failure: BellglassError | None = None
        self._requested = False
        self._connected = False
        self._over = False
        self._ended = False
        self._chunks: deque[memoryview | bytearray] = deque()
        self._received = 0
        self._taken = 0
        self._given = 0
        self._sent = 0
        self._acknowledged = 0
        # One for each direction: either may wait while the other moves.
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Returns when the program has taken the connection. Raises PortUnreachable (`details.reason`: `refused` or
        `timeout`), LimitExceeded, AgentLost, NotSupported (its agent is of a release without ports)."""
        session = self._live.session
        hello = await session.wait_link(asyncio.get_running_loop().time() + LINK_WAIT_S)
        if not hello.features & guest.FEATURE_DIAL:
            raise NotSupported(
                "the sandbox was started by a release that publishes no ports", hint="create the sandbox anew"
            )
        session.attach(self)
        try:
            async with asyncio.timeout(CONNECT_S):
                while not self._connected:
                    await self._wait(self._readable)
        except TimeoutError:
            self._leave()
            raise PortUnreachable(
                f"port {self.port} does not take the connection within {CONNECT_S:g} s",
                hint="the program that listens there may be frozen or overloaded",
                details={"port": self.port, "reason": "timeout"},
            ) from None
        except BaseException:
            self._leave()
            raise
        self._live.active()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.active()
        self._leave()

    async def send(self, data: bytes) -> None:
        """Bytes for the program; waits for the window. Raises PortUnreachable (`reset`), AgentLost."""
        view = memoryview(data)
        while view:
            while (room := WINDOW_BYTES - (self._sent - self._acknowledged)) <= 0:
                await self._wait(self._writable)
            self._check()
            piece = view[: min(room, MAX_DATA)]
            head = HEADER.pack(len(piece) + _OFFSET.size, GuestType.DATA, STDIN, 0, self.id)
            self.session.send(head + _OFFSET.pack(self._sent), piece)
            self._sent += len(piece)
            view = view[len(piece) :]
        self._live.active()

    def end(self) -> None:
        """No more bytes for the program."""
        self._check()
        self.session.send(guest.encode_eof(self.id, STDIN, self._sent))

    async def chunks(self) -> AsyncIterator[memoryview]:
        """The program's bytes up to its end. What was yielded counts as taken when the next one is asked for."""
        while True:
            while self._chunks:
                chunk = memoryview(self._chunks.popleft())  # out of the queue nothing is added to it any more
                self._live.active()
                yield chunk
                self._taken += len(chunk)
                if self._taken - self._given >= ACK_STEP_BYTES:
                    self._given = self._taken
                    self.session.send(guest.encode_ack(self.id, STDOUT, self._taken))
            if self._ended:
                return
            await self._wait(self._readable)

    async def over(self) -> None:
        """Until both directions have ended and the program has all bytes."""
        while not self._over:
            await self._wait(self._writable)

    # --- GuestStream ------------------------------------------------------------------------------------

    def link_restored(self, *, known: bool) -> None:
        if self._requested:
            self.link_lost()
            return
        self._requested = True
        self.session.send(guest.encode_dial(self.id, self.port))

    def link_lost(self) -> None:
        self._fail(AgentLost("the link to the sandbox broke, and its connections with it", hint="connect again"))

    def session_closed(self, error: BellglassError) -> None:
        self._fail(error)

    def frame_received(self, frame: Frame) -> None:
        if frame.type == GuestType.DATA:
            self._on_data(frame)
            self._readable.set()
        elif frame.type == GuestType.ACK:
            offset = guest.decode_offset(frame.payload)[0]
            if frame.channel != STDIN or offset > self._sent:
                raise FrameError(f"ACK of {offset} on channel {frame.channel}, sent are {self._sent}")
            self.session.budget.earn_bytes(max(offset - self._acknowledged, 0))
            self._acknowledged = max(self._acknowledged, offset)
            self._writable.set()
        elif frame.type == GuestType.EOF:
            offset = guest.decode_offset(frame.payload)[0]
            if frame.channel != STDOUT or offset != self._received or self._ended or not self._connected:
                raise FrameError(f"EOF at {offset} on channel {frame.channel}, received are {self._received}")
            self._ended = True
            self._readable.set()
        elif frame.type == GuestType.CONNECTED:
            if self._connected:
                raise FrameError("a second CONNECTED")
            self._connected = True
            self._readable.set()
        elif frame.type == GuestType.RESULT:
            if not self._ended:
                raise FrameError("the RESULT of a connection that has not ended")
            self._over = True
            self._writable.set()
        elif frame.type == GuestType.FAILED:
            self._fail(self._error_of(guest.decode_failure(frame.payload)))

    # --- inside -----------------------------------------------------------------------------------------

    def _on_data(self, frame: Frame) -> None:
        offset, data = guest.decode_offset(frame.payload)
        if frame.channel != STDOUT or self._ended or not self._connected or not data or offset != self._received:
            raise FrameError(f"{len(data)} bytes at {offset} on channel {frame.channel} of a connection")
        self._received += len(data)
        if self._received - self._given > WINDOW_BYTES:
            raise FrameError("a connection's bytes are beyond its window")
        self.session.budget.earn_bytes(len(data))
        last = self._chunks[-1] if self._chunks else None
        if len(data) >= _JOIN_BELOW_BYTES:
            self._chunks.append(data)
        elif isinstance(last, bytearray) and len(last) < _JOIN_BELOW_BYTES:
            last += data  # single bytes as frames of their own would cost a hundredfold in memory
        else:
            self._chunks.append(bytearray(data))

    def _error_of(self, failure: GuestFailure) -> BellglassError:
        if failure.stage == "limit":
            return LimitExceeded(
                f"the sandbox has too many open connections: {failure.message}", hint="wait for one to end"
            )
        if failure.stage == "reset":
            message, reason = f"the program on port {self.port} reset the connection", "reset"
        elif failure.stage == "connect" and failure.errno == errno.ECONNREFUSED:
            message, reason = f"nothing listens on port {self.port} of the sandbox", "refused"
        else:
            known = os.strerror(failure.errno) if failure.errno else failure.stage
            message, reason = f"port {self.port} of the sandbox can't be reached: {known}", "failed"
        return PortUnreachable(
            message,
            hint="start the program, on 127.0.0.1 or 0.0.0.0" if reason == "refused" else None,
            details={"port": self.port, "reason": reason},
        )

    def _leave(self) -> None:
        if self._failure is None and not self._over:
            self.session.send(guest.encode_abort(self.id))
        self.session.release(self)

    def _fail(self, error: BellglassError) -> None:
        self._failure = self._failure or error
        self._readable.set()
        self._writable.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait(self, moved: asyncio.Event) -> None:
        """Until something happened in that direction. Raises the connection's error."""
        self._check()
        moved.clear()
        await moved.wait()
