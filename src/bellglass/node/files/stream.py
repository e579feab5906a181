"""One file operation on the link: a request, bytes in one direction under a window, and one RESULT or FAILED.

It does not survive its link: the agent undoes it, the caller hears AgentLost. An agent that makes no progress for
`PROGRESS_S` while we wait for it loses the operation; work that shows nothing until it is done (a sync, a tree) has
longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from bellglass import faultpoints
from bellglass.errors import AgentLost, BellglassError, LimitExceeded, NotSupported
from bellglass.node.files import errors
from bellglass.node.guestlink.flow import Inflow, Outflow
from bellglass.node.guestlink.session import LINK_WAIT_S
from bellglass.node.guestlink.stream import GuestStream
from bellglass.node.live import LiveSandbox
from bellglass.wire import guest
from bellglass.wire.frames import Frame, FrameError
from bellglass.wire.guest import STDIN, STDOUT, FileOp, FileResult, GuestType

WINDOW_BYTES = 1024 * 1024
ACK_STEP_BYTES = 256 * 1024
PROGRESS_S = 30.0
RESULT_S = 300.0
AT_ONCE = 64
_WITH_OUTPUT = (FileOp.READ, FileOp.LIST, FileOp.ARCHIVE_OUT, FileOp.WATCH)


class FileStream(GuestStream):
    """`async with FileStream(live, FileOp.READ, path, ...) as operation:`; leaving early aborts it."""

    def __init__(self, live: LiveSandbox, operation: FileOp, path: str, **fields: Any) -> None:
        self.path = path
        self._live = live
        self._operation = operation
        self._fields = fields
        self._failure: BellglassError | None = None
        self._result: FileResult | None = None
        self._in = Inflow("a file operation", WINDOW_BYTES, ACK_STEP_BYTES, is_open=operation in _WITH_OUTPUT)
        self._out = Outflow(WINDOW_BYTES)
        self._moved = asyncio.Event()
        self._requested = False

    async def __aenter__(self) -> Self:
        session = self._live.session
        if self._live.operations >= AT_ONCE:
            raise LimitExceeded(
                f"{self._live.operations} file operations are under way in this sandbox, the most at once is {AT_ONCE}",
                hint="wait for one to end",
            )
        hello = await session.wait_link(asyncio.get_running_loop().time() + LINK_WAIT_S)
        self._check_features(hello.features)
        self._live.operations += 1
        try:
            session.attach(self)
        except BaseException:
            self._live.operations -= 1
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.operations -= 1
        self._live.active()
        if self._failure is None and (self._result is None or self._in.is_open):
            self.session.send(guest.encode_abort(self.id))
        self.session.release(self)

    def _check_features(self, features: int) -> None:
        newer = [name for name in ("attributes", "owner", "depth") if self._fields.get(name) is not None]
        if newer and not features & guest.FEATURE_ATTRIBUTES:
            raise NotSupported(
                f"{newer[0]}: the sandbox was started by a release that does not know it",
                hint="create the sandbox anew",
            )

    # --- for callers ------------------------------------------------------------------------------------

    async def result(self) -> FileResult:
        """RESULT. Raises what FAILED means, or AgentLost."""
        while self._result is None:
            await self._wait(PROGRESS_S if self._in.is_open else RESULT_S)
        return self._result

    async def send(self, data: bytes) -> None:
        """Input bytes; waits for the window."""
        view = memoryview(data)
        while view:
            while self._out.room <= 0:
                await self._wait(PROGRESS_S)
            self._check()
            head, piece = self._out.frame(self.id, view)
            self.session.send(head, piece)
            faultpoints.reach("node.file.data_sent")
            view = view[len(piece) :]

    async def end(self) -> FileResult:
        """The input is complete: commit, and wait for RESULT."""
        self._check()
        self.session.send(guest.encode_eof(self.id, STDIN, self._out.sent))
        faultpoints.reach("node.file.commit_sent")
        while not self._out.is_acknowledged and self._result is None:
            await self._wait(PROGRESS_S)
        return await self.result()

    async def chunks(self, *, wait_s: float | None = PROGRESS_S) -> AsyncIterator[memoryview]:
        """Output bytes up to their end. What was yielded counts as taken when the next one is asked for. After `wait_s`
        without any the operation is given up."""
        while True:
            while (chunk := self._in.next()) is not None:
                yield chunk
                if (offset := self._in.took(len(chunk))) is not None:
                    self.session.send(guest.encode_ack(self.id, STDOUT, offset))
            if self._in.ended:
                return
            await self._wait(wait_s)

    # --- GuestStream ------------------------------------------------------------------------------------

    def link_restored(self, *, known: bool) -> None:
        if self._requested:
            self._fail(AgentLost("the link to the sandbox broke during a file operation", hint="try again"))
            return
        self._requested = True
        self.session.send(guest.encode_file(self.id, self._operation, self.path, **self._fields))
        faultpoints.reach("node.file.requested")

    def link_lost(self) -> None:
        self._fail(AgentLost("the link to the sandbox broke during a file operation", hint="try again"))

    def session_closed(self, error: BellglassError) -> None:
        self._fail(error)

    def frame_received(self, frame: Frame) -> None:
        if frame.type == GuestType.DATA:
            self.session.budget.earn_bytes(self._in.add(frame))
        elif frame.type == GuestType.ACK:
            self.session.budget.earn_bytes(self._out.acknowledge(frame))
        elif frame.type == GuestType.EOF:
            self._in.end(frame)
        elif frame.type == GuestType.RESULT:
            if self._result is not None:
                raise FrameError("a second RESULT")
            self._result = guest.decode_result(frame.payload)
            faultpoints.reach("node.file.result")
        elif frame.type == GuestType.FAILED:
            self._fail(errors.of_failure(guest.decode_failure(frame.payload), self.path))
        self._moved.set()

    # --- inside -----------------------------------------------------------------------------------------

    def _fail(self, error: BellglassError) -> None:
        self._failure = self._failure or error
        self._moved.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait(self, limit_s: float | None) -> None:
        """Until something happened. Raises the operation's error, AgentLost when nothing did."""
        self._check()
        self._moved.clear()
        try:
            async with asyncio.timeout(limit_s):
                await self._moved.wait()
        except TimeoutError:
            error = AgentLost(
                f"{errors.shown(self.path)}: no progress for {limit_s:g} s; the operation was given up",
                hint="try again",
            )
            self.session.send(guest.encode_abort(self.id))
            self._fail(error)
        self._check()
