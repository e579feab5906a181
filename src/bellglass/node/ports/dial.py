"""One connection to a port of a sandbox: its agent dials, bytes go both ways under windows, each way has its end.

It does not survive its link: the agent resets it, both sides hear AgentLost. A silent connection is kept for as long as
both ends keep it; how many there may be is the agent's limit.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from bellglass.errors import AgentLost, BellglassError, LimitExceeded, NotSupported, PortUnreachable
from bellglass.node.guestlink.flow import Inflow, Outflow
from bellglass.node.guestlink.session import LINK_WAIT_S
from bellglass.node.guestlink.stream import GuestStream
from bellglass.node.live import LiveSandbox
from bellglass.wire import guest
from bellglass.wire.frames import Frame, FrameError
from bellglass.wire.guest import STDIN, STDOUT, WINDOW_BYTES, GuestFailure, GuestType

CONNECT_S = 5.0
ACK_STEP_BYTES = WINDOW_BYTES // 4


class DialStream(GuestStream):
    """`async with DialStream(live, port) as connection:`; leaving before both ends have come resets it."""

    def __init__(self, live: LiveSandbox, port: int) -> None:
        self.port = port
        self._live = live
        self._failure: BellglassError | None = None
        self._requested = False
        self._connected = False
        self._over = False
        self._in = Inflow("a connection", WINDOW_BYTES, ACK_STEP_BYTES, is_open=False)
        self._out = Outflow(WINDOW_BYTES)
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
            while self._out.room <= 0:
                await self._wait(self._writable)
            self._check()
            head, piece = self._out.frame(self.id, view)
            self.session.send(head, piece)
            view = view[len(piece) :]
        self._live.active()

    def end(self) -> None:
        """No more bytes for the program."""
        self._check()
        self.session.send(guest.encode_eof(self.id, STDIN, self._out.sent))

    async def chunks(self) -> AsyncIterator[memoryview]:
        """The program's bytes up to its end. What was yielded counts as taken when the next one is asked for."""
        while True:
            while (chunk := self._in.next()) is not None:
                self._live.active()
                yield chunk
                if (offset := self._in.took(len(chunk))) is not None:
                    self.session.send(guest.encode_ack(self.id, STDOUT, offset))
            if self._in.ended:
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
            self.session.budget.earn_bytes(self._in.add(frame))
            self._readable.set()
        elif frame.type == GuestType.ACK:
            self.session.budget.earn_bytes(self._out.acknowledge(frame))
            self._writable.set()
        elif frame.type == GuestType.EOF:
            self._in.end(frame)
            self._readable.set()
        elif frame.type == GuestType.CONNECTED:
            if self._connected:
                raise FrameError("a second CONNECTED")
            self._connected = self._in.is_open = True
            self._readable.set()
        elif frame.type == GuestType.RESULT:
            if not self._in.ended:
                raise FrameError("the RESULT of a connection that has not ended")
            self._over = True
            self._writable.set()
        elif frame.type == GuestType.FAILED:
            self._fail(self._error_of(guest.decode_failure(frame.payload)))

    # --- inside -----------------------------------------------------------------------------------------

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
