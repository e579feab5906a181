"""One file operation on the link: a request, bytes in one direction under a window, and one RESULT or FAILED.

It does not survive its link: the agent undoes it, the caller hears AgentLost. An agent that makes no progress for
`PROGRESS_S` while we wait for it loses the operation; work that shows nothing until it is done (a sync, a tree) has
longer.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from bellglass import faultpoints
from bellglass.errors import AgentLost, BellglassError, LimitExceeded, NotSupported
from bellglass.node.files import errors
from bellglass.node.guestlink.session import LINK_WAIT_S
from bellglass.node.guestlink.stream import GuestStream
from bellglass.node.live import LiveSandbox
from bellglass.wire import guest
from bellglass.wire.frames import HEADER, MAX_DATA, Frame, FrameError
from bellglass.wire.guest import STDIN, STDOUT, FileOp, FileResult, GuestType

WINDOW_BYTES = 1024 * 1024
ACK_STEP_BYTES = 256 * 1024
PROGRESS_S = 30.0
RESULT_S = 300.0
AT_ONCE = 64
_JOIN_BELOW_BYTES = 16 * 1024
_OFFSET = struct.Struct("<Q")


class FileStream(GuestStream):
    """`async with FileStream(live, FileOp.READ, path, ...) as operation:`; leaving early aborts it."""

    def __init__(self, live: LiveSandbox, operation: FileOp, path: str, **fields: Any) -> None:
        self.path = path
        self._live = live
        self._operation = operation
        self._fields = fields
        self._failure: BellglassError | None = None
        self._result: FileResult | None = None
        self._ended = False
        self._chunks: deque[memoryview | bytearray] = deque()
        self._received = 0
        self._taken = 0
        self._given = 0
        self._sent = 0
        self._acknowledged = 0
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
        if self._failure is None and (self._result is None or not self._complete):
            self.session.send(guest.encode_abort(self.id))
        self.session.release(self)

    @property
    def _complete(self) -> bool:
        return self._ended or self._operation not in (FileOp.READ, FileOp.LIST, FileOp.ARCHIVE_OUT, FileOp.WATCH)

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
            await self._wait(RESULT_S if self._complete else PROGRESS_S)
        return self._result

    async def send(self, data: bytes) -> None:
        """Input bytes; waits for the window."""
        view = memoryview(data)
        while view:
            while (room := WINDOW_BYTES - (self._sent - self._acknowledged)) <= 0:
                await self._wait(PROGRESS_S)
            self._check()
            piece = view[: min(room, MAX_DATA)]
            # Head and bytes go to the kernel as two pieces: no copy of the bytes is made.
            head = HEADER.pack(len(piece) + _OFFSET.size, GuestType.DATA, STDIN, 0, self.id) + _OFFSET.pack(self._sent)
            self.session.send(head, piece)
            self._sent += len(piece)
            faultpoints.reach("node.file.data_sent")
            view = view[len(piece) :]

    async def end(self) -> FileResult:
        """The input is complete: commit, and wait for RESULT."""
        self._check()
        self.session.send(guest.encode_eof(self.id, STDIN, self._sent))
        faultpoints.reach("node.file.commit_sent")
        while self._acknowledged < self._sent and self._result is None:
            await self._wait(PROGRESS_S)
        return await self.result()

    async def chunks(self, *, wait_s: float | None = PROGRESS_S) -> AsyncIterator[memoryview]:
        """Output bytes up to their end. What was yielded counts as taken when the next one is asked for. After `wait_s`
        without any the operation is given up."""
        while True:
            while self._chunks:
                chunk = memoryview(self._chunks.popleft())  # out of the queue nothing is added to it any more
                yield chunk
                self._taken += len(chunk)
                if self._taken - self._given >= ACK_STEP_BYTES:
                    self._given = self._taken
                    self.session.send(guest.encode_ack(self.id, STDOUT, self._taken))
            if self._ended:
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
            self._on_data(frame)
        elif frame.type == GuestType.ACK:
            offset = guest.decode_offset(frame.payload)[0]
            if frame.channel != STDIN or offset > self._sent:
                raise FrameError(f"ACK of {offset} on channel {frame.channel}, sent are {self._sent}")
            self.session.budget.earn_bytes(max(offset - self._acknowledged, 0))
            self._acknowledged = max(self._acknowledged, offset)
        elif frame.type == GuestType.EOF:
            offset = guest.decode_offset(frame.payload)[0]
            if frame.channel != STDOUT or offset != self._received or self._complete:
                raise FrameError(f"EOF at {offset} on channel {frame.channel}, received are {self._received}")
            self._ended = True
        elif frame.type == GuestType.RESULT:
            if self._result is not None:
                raise FrameError("a second RESULT")
            self._result = guest.decode_result(frame.payload)
            faultpoints.reach("node.file.result")
        elif frame.type == GuestType.FAILED:
            self._fail(errors.of_failure(guest.decode_failure(frame.payload), self.path))
        self._moved.set()

    # --- inside -----------------------------------------------------------------------------------------

    def _on_data(self, frame: Frame) -> None:
        offset, data = guest.decode_offset(frame.payload)
        if frame.channel != STDOUT or self._complete or not data or offset != self._received:
            raise FrameError(f"{len(data)} bytes at {offset} on channel {frame.channel} of a file operation")
        self._received += len(data)
        if self._received - self._given > WINDOW_BYTES:
            raise FrameError("a file operation's output is beyond its window")
        self.session.budget.earn_bytes(len(data))
        last = self._chunks[-1] if self._chunks else None
        if len(data) >= _JOIN_BELOW_BYTES:
            self._chunks.append(data)
        elif isinstance(last, bytearray) and len(last) < _JOIN_BELOW_BYTES:
            last += data  # single bytes as frames of their own would cost a hundredfold in memory
        else:
            self._chunks.append(bytearray(data))

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
