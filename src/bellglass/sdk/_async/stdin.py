"""Standard input of an execution, sent by offset: what a broken connection left unanswered goes again, and once.

The server answers a write when it lies in the program's pipe, and one at another offset with where its input stands;
so a retry knows how much of the attempt before it had arrived. Several may write to one execution, each write whole;
but where connections break, only one writer can be told from itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from bellglass.errors import (
    BellglassError,
    Conflict,
    ConnectionFailed,
    NodeUnavailable,
    NotFound,
    SandboxGone,
    StreamInterrupted,
)
from bellglass.sdk._async._compat import AsyncBackground, pieces, sleep
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._commands import STDIN_PIECE, as_bytes, cut
from bellglass.sdk._http import target, was_sent
from bellglass.sdk._patience import Patience


class AsyncInput:
    """`position`: where standard input stands, None if that is to be asked. `stopped` ends the retries."""

    def __init__(
        self,
        transport: AsyncTransport,
        execution_path: str,
        position: int | None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._transport = transport
        self._path = f"{execution_path}/stdin"
        self._position = position
        self._stopped = stopped

    async def write(self, data: bytes, *, eof: bool = False) -> None:
        """Until the program's pipe has taken it. Raises Conflict where standard input is not open, StreamInterrupted
        where how much was taken can't be known."""
        patience, unsure = Patience(), False
        while True:
            try:
                if self._position is None:
                    self._position = await self._post(b"", None, eof=False)
                self._position = await self._post(data, self._position, eof=eof)
                return
            except Conflict as error:
                stands_at, ended = error.details.get("received"), bool(error.details.get("ended"))
                if not isinstance(stands_at, int) or self._position is None:
                    raise
                taken = stands_at - self._position
                if unsure and 0 <= taken <= len(data) and (not ended or (eof and taken == len(data))):
                    data, self._position = data[taken:], stands_at
                    if ended or not (data or eof):
                        return
                elif ended:
                    raise
                elif unsure:
                    raise StreamInterrupted(
                        f"how much of {len(data)} bytes of standard input was taken is not known: it stands at byte "
                        f"{stands_at}, and the write began at {self._position}",
                        hint="let one writer at a time feed an execution",
                    ) from error
                else:
                    self._position = stands_at  # somebody else writes as well
            except (ConnectionFailed, NodeUnavailable) as error:
                unsure = unsure or not isinstance(error, ConnectionFailed) or was_sent(error)
                delay_s = patience.delay_s()
                if delay_s is None or self._stopped():
                    raise
                await sleep(delay_s)

    async def _post(self, data: bytes, offset: int | None, *, eof: bool) -> int:
        where = target(self._path, {"offset": offset, "eof": eof})
        answer = await self._transport.request("POST", where, content=data, read_timeout_s=None)
        return int(answer.json()["offset"])


class AsyncFeeder:
    """Sends standard input while the output is read. A program that ends before it has read all is no failure."""

    def __init__(self, transport: AsyncTransport, path: str, source: Any) -> None:
        self._transport = transport
        self._path = path
        self._source = source
        self._background = AsyncBackground(self._send, self._kill)

    async def _send(self, background: AsyncBackground) -> None:
        stdin = AsyncInput(self._transport, self._path, 0, lambda: background.stopped)
        try:
            async for piece in pieces(self._source):
                data = as_bytes(piece)
                for part in cut(data) if len(data) > STDIN_PIECE else (data,):
                    if not await self._write(background, stdin, part):
                        return
            await self._write(background, stdin, b"", eof=True)
        except (Conflict, NotFound, SandboxGone):
            pass  # it ended, or closed its input: how it ended comes with the output

    async def _write(self, background: AsyncBackground, stdin: AsyncInput, data: bytes, *, eof: bool = False) -> bool:
        background.busy = True  # before the look at `stopped`: whoever stops looks the other way round
        try:
            if background.stopped:
                return False
            await stdin.write(data, eof=eof)
            return True
        finally:
            background.busy = False

    async def _kill(self) -> None:
        # Without the rest of its input it would wait for ever, or work on half of it.
        signal = {"signal": "SIGKILL", "scope": "tree"}
        with suppress(BellglassError):  # gone already, or out of reach: the output's reader hears that
            await self._transport.request("POST", f"{self._path}/signal", json=signal, idempotent=True)

    async def stop(self) -> None:
        """Raises what made the input fail, if anything did."""
        await self._background.stop()
        if self._background.failure is not None:
            raise self._background.failure
