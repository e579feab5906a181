"""Executions: following one's output to its end over broken connections, feeding its input, and the handle of a
started one.

An execution belongs to its sandbox and not to a connection. Its id is made here, so that a request whose answer was
lost can be sent again: the server attaches to what that id started and never runs it a second time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from json import JSONDecodeError
from typing import Any

from bellglass.errors import (
    Conflict,
    ConnectionFailed,
    NodeUnavailable,
    NotFound,
    SandboxGone,
    StreamInterrupted,
    from_dict,
)
from bellglass.model import Execution as ExecutionInfo
from bellglass.sdk._async._compat import AsyncBackground, call, pieces, sleep
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._commands import STDIN_PIECE, Command, as_bytes, cut
from bellglass.sdk._http import RETRY_DELAYS_S, STREAM_TIMEOUT_S, execution_path, sandbox_path, target, was_sent
from bellglass.sdk._results import DEFAULT_MAX_OUTPUT, Collector, ExecResult, OutputChunk, TextStreams, failed
from bellglass.units import parse_size
from bellglass.wire.frames import FrameError
from bellglass.wire.output import FRAMES, OutputDecoder, OutputEvent, OutputType

# How long a server that is away (it restarts) is asked again for an execution that runs.
RECONNECT_S = 60.0
_FIRST_DELAY_S = 0.05
_MAX_DELAY_S = 2.0


async def follow_events(
    transport: AsyncTransport, sandbox_id: str, execution_id: str, *, body: Any = None, offset: int = 0
) -> AsyncIterator[OutputEvent]:
    """Output from `offset` on, and EXIT last. With a `body` the execution is created first.

    A broken connection is made again, from the byte that came last. Raises StreamInterrupted when that fails for
    RECONNECT_S or the server does not know the execution (any more); ConnectionFailed when there was no server to
    begin with; the error that ended the execution's stream."""
    create = target(sandbox_path(sandbox_id) + "/executions")
    attach = execution_path(sandbox_id, execution_id) + "/output"
    began = False  # something of the execution came: from now on it is only attached to
    reached = body is None
    attempts, delay_s, give_up = 0, _FIRST_DELAY_S, 0.0
    ending: OutputEvent | None = None
    while True:
        try:
            if body is not None and not began:
                response = await transport.open(
                    "POST", create, json=body, accept=FRAMES, read_timeout_s=STREAM_TIMEOUT_S
                )
            else:
                where = target(attach, {"offset": offset, "follow": True})
                response = await transport.open("GET", where, accept=FRAMES, read_timeout_s=STREAM_TIMEOUT_S)
            try:
                decoder = OutputDecoder()
                async with aclosing(response.__aiter__()) as chunks:  # type: ignore[type-var]
                    async for chunk in chunks:
                        for event in decoder.feed(chunk):
                            began = reached = True
                            give_up, delay_s = 0.0, _FIRST_DELAY_S
                            if event.type in (OutputType.STDOUT, OutputType.STDERR):
                                if event.offset < offset:  # came before the break already
                                    event = event._replace(offset=offset, data=event.data[offset - event.offset :])
                                if event.data:
                                    offset = event.offset + len(event.data)
                                    yield event
                            elif event.type is OutputType.SKIPPED:
                                value = event.value or {}
                                offset = max(offset, int(value.get("offset", 0)) + int(value.get("bytes", 0)))
                                yield event
                            elif event.type is OutputType.ERROR:
                                raise from_dict(event.value)
                            elif event.type is OutputType.EXIT:
                                ending = event  # the body's end is read as well: the connection stays usable
                            elif event.type is OutputType.STARTED:
                                yield event
            finally:
                await response.aclose()
            if ending is None:
                raise ConnectionFailed("the output ended before its execution did", details={"stage": "exchange"})
        except (ConnectionFailed, NodeUnavailable, FrameError, JSONDecodeError) as error:
            if ending is None:
                attempts += 1
                reached = reached or not isinstance(error, ConnectionFailed) or was_sent(error)
                if not reached and attempts > len(RETRY_DELAYS_S):
                    raise
                give_up = give_up or time.monotonic() + RECONNECT_S
                if time.monotonic() + delay_s > give_up:
                    raise _interrupted(execution_id, f"the server was away for {RECONNECT_S:.0f} s") from error
                await sleep(delay_s)
                delay_s = min(delay_s * 2, _MAX_DELAY_S)
                continue
        except NotFound as error:
            if began:
                raise _interrupted(execution_id, "the server does not know it any more") from error
            raise
        assert ending is not None
        yield ending
        return


def _interrupted(execution_id: str, why: str) -> StreamInterrupted:
    return StreamInterrupted(
        f"how execution {execution_id} ended is not known: {why}",
        hint=f"attach again with box.execution({execution_id!r})",
        details={"execution_id": execution_id},
    )


async def write_stdin(transport: AsyncTransport, path: str, data: bytes, *, eof: bool) -> int:
    """One piece of input; returns when the program's pipe has taken it. Raises Conflict where stdin is not open."""
    answer = await transport.request("POST", target(f"{path}/stdin", {"eof": eof}), content=data, read_timeout_s=None)
    return int(answer.json().get("written", len(data)))


class AsyncFeeder:
    """Sends standard input while the output is read. A program that ends before it has read all is no failure."""

    def __init__(self, transport: AsyncTransport, path: str, source: Any) -> None:
        self._transport = transport
        self._path = path
        self._source = source
        self._background = AsyncBackground(self._send, self._kill)

    async def _send(self, background: AsyncBackground) -> None:
        try:
            async for piece in pieces(self._source):
                data = as_bytes(piece)
                for part in cut(data) if len(data) > STDIN_PIECE else (data,):
                    if not await self._write(background, part):
                        return
            await self._write(background, b"", eof=True)
        except (Conflict, NotFound, SandboxGone):
            pass  # it ended, or closed its input: how it ended comes with the output

    async def _write(self, background: AsyncBackground, data: bytes, *, eof: bool = False) -> bool:
        background.busy = True  # before the look at `stopped`: whoever stops looks the other way round
        try:
            if background.stopped:
                return False
            await write_stdin(self._transport, self._path, data, eof=eof)
            return True
        finally:
            background.busy = False

    async def _kill(self) -> None:
        # Without the rest of its input it would wait for ever, or work on half of it.
        await self._transport.request("POST", f"{self._path}/signal", json={"signal": "SIGKILL", "scope": "tree"})

    async def stop(self) -> None:
        """Raises what made the input fail, if anything did."""
        await self._background.stop()
        if self._background.failure is not None:
            raise self._background.failure


async def run(
    transport: AsyncTransport,
    sandbox_id: str,
    command: Command,
    *,
    create: bool,
    max_output: int | float | str = DEFAULT_MAX_OUTPUT,
    on_stdout: Callable[[str], Any] | None = None,
    on_stderr: Callable[[str], Any] | None = None,
    on_chunk: Callable[[OutputChunk], Any] | None = None,
    check: bool = False,
) -> ExecResult:
    """Create (or only attach to) an execution and collect it to its end."""
    collector = Collector(parse_size(max_output, "max_output"))
    texts = TextStreams() if on_stdout or on_stderr or on_chunk else None
    feeder: AsyncFeeder | None = None
    record: dict[str, Any] = {}

    async def tell(chunk: OutputChunk) -> None:
        if on_chunk is not None:
            await call(on_chunk, chunk)
        callback = {"stdout": on_stdout, "stderr": on_stderr}.get(chunk.stream)
        if callback is not None and chunk.text:
            await call(callback, chunk.text)

    try:
        events = follow_events(transport, sandbox_id, command.id, body=command.body if create else None)
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if event.type is OutputType.EXIT:
                    record = event.value or {}
                    continue
                if event.type is OutputType.STARTED:
                    if command.stdin is not None and feeder is None:
                        feeder = AsyncFeeder(transport, execution_path(sandbox_id, command.id), command.stdin)
                    continue
                collector.feed(event)
                if texts is not None:
                    await tell(texts.chunk(event))
        for chunk in texts.last() if texts is not None else []:
            await tell(chunk)
    finally:
        if feeder is not None:
            await feeder.stop()
    record = record.get("execution", record)
    if record.get("state") == "lost":
        raise _interrupted(command.id, "its sandbox ended first")
    result = collector.result(command.id, record)
    if check and not result.ok:
        raise failed(record.get("command") or command.body.get("command", command.id), result)
    return result


class AsyncExecution:
    """A started execution. It runs on whether or not anybody holds this handle."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str, execution_id: str) -> None:
        self._transport = transport
        self._path = execution_path(sandbox_id, execution_id)
        self.sandbox_id = sandbox_id
        self.id = execution_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self.sandbox_id}>"

    async def status(self) -> ExecutionInfo:
        """Its record as it is now. Raises NotFound, SandboxGone."""
        return ExecutionInfo.from_json((await self._transport.request("GET", self._path, idempotent=True)).json())

    async def wait(
        self,
        *,
        check: bool = False,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        max_output: int | float | str = DEFAULT_MAX_OUTPUT,
    ) -> ExecResult:
        """Wait for its end; the result holds the output from the start, as far as the log still has it.

        Raises ExecutionFailed (with `check`), StreamInterrupted, NotFound, SandboxGone, ConnectionFailed."""
        return await run(
            self._transport,
            self.sandbox_id,
            Command(self.id, {}, None),
            create=False,
            max_output=max_output,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            check=check,
        )

    async def output(self, *, follow: bool = True, offset: int = 0) -> AsyncIterator[OutputChunk]:
        """Its output from byte `offset` of both streams together, to its end or, without `follow`, to what there is."""
        texts = TextStreams()
        if follow:
            events = follow_events(self._transport, self.sandbox_id, self.id, offset=offset)
        else:
            events = self._logged(offset)
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if event.type in (OutputType.STDOUT, OutputType.STDERR, OutputType.SKIPPED):
                    yield texts.chunk(event)
        for chunk in texts.last():
            yield chunk

    async def _logged(self, offset: int) -> AsyncIterator[OutputEvent]:
        where = target(f"{self._path}/output", {"offset": offset, "follow": False})
        response = await self._transport.open("GET", where, accept=FRAMES, read_timeout_s=STREAM_TIMEOUT_S)
        decoder = OutputDecoder()
        try:
            async for chunk in response:
                for event in decoder.feed(chunk):
                    if event.type is OutputType.ERROR:
                        raise from_dict(event.value)
                    yield event
        finally:
            await response.aclose()

    async def write_stdin(self, data: str | bytes, *, eof: bool = False) -> None:
        """Write to its standard input (started with `stdin_open=True`), waiting until the program has taken it.

        Raises Conflict when its input is not open (any more)."""
        raw = as_bytes(data)
        parts = list(cut(raw)) or [b""]
        for index, part in enumerate(parts):
            await write_stdin(self._transport, self._path, part, eof=eof and index == len(parts) - 1)

    async def close_stdin(self) -> None:
        """End its standard input."""
        await write_stdin(self._transport, self._path, b"", eof=True)

    async def signal(self, signal: str | int, *, scope: str = "tree") -> None:
        """Send a signal ("SIGINT", 2) to all of its processes, or with scope="process" to the first one alone."""
        await self._transport.request("POST", f"{self._path}/signal", json={"signal": signal, "scope": scope})

    async def kill(self) -> None:
        """End all of its processes at once. It having ended already is success."""
        try:
            await self.signal("SIGKILL")
        except Conflict:
            pass
