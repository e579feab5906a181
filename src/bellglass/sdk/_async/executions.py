"""Executions: following one's output to its end over broken connections, and the handle of a started one.

An execution belongs to its sandbox and not to a connection. Its id is made here, so that a request whose answer was
lost can be sent again: the server attaches to what that id started and never runs it a second time.
"""

from __future__ import annotations

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
from bellglass.sdk._async._compat import call, sleep
from bellglass.sdk._async.attach import AsyncAttachment
from bellglass.sdk._async.gone import meanwhile
from bellglass.sdk._async.stdin import AsyncFeeder, AsyncInput
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._commands import Command, as_bytes, cut, terminal_size
from bellglass.sdk._http import STREAM_TIMEOUT_S, execution_path, sandbox_path, target
from bellglass.sdk._patience import RECONNECT_S, Attempts
from bellglass.sdk._results import DEFAULT_MAX_OUTPUT, Collector, ExecResult, OutputChunk, Position, TextStreams, failed
from bellglass.units import parse_size
from bellglass.wire.frames import FrameError
from bellglass.wire.output import FRAMES, OutputDecoder, OutputEvent, OutputType


async def follow_events(
    transport: AsyncTransport,
    sandbox_id: str,
    execution_id: str,
    *,
    body: Any = None,
    offset: int = 0,
    follow: bool = True,
) -> AsyncIterator[OutputEvent]:
    """Output from `offset` on, and EXIT last; without `follow` what there is of them. With a `body` the execution is
    created first, and is waited for: its program never gets far ahead of this reader.

    A broken connection is made again, from the byte that came last. Raises StreamInterrupted when that fails for
    RECONNECT_S or the server does not know the execution (any more); SandboxGone where the sandbox was deleted
    meanwhile; ConnectionFailed when there was no server to begin with; the error that ended the execution's stream."""
    create = target(sandbox_path(sandbox_id) + "/executions")
    attach = execution_path(sandbox_id, execution_id) + "/output"
    began = False  # something of the execution came: from now on it is only attached to
    attempts = Attempts(reached=body is None)
    position = Position(offset)
    ending: OutputEvent | None = None
    while True:
        try:
            if body is not None and not began:
                response = await transport.open(
                    "POST", create, json=body, accept=FRAMES, read_timeout_s=STREAM_TIMEOUT_S
                )
            else:
                where = target(attach, {"offset": position.offset, "follow": follow, "resume": True if body else None})
                response = await transport.open("GET", where, accept=FRAMES, read_timeout_s=STREAM_TIMEOUT_S)
            try:
                decoder = OutputDecoder()
                async with aclosing(response.__aiter__()) as chunks:  # type: ignore[type-var]
                    async for chunk in chunks:
                        for event in decoder.feed(chunk):
                            began = True
                            attempts.success()
                            if event.type is OutputType.ERROR:
                                raise from_dict(event.value)
                            if event.type is OutputType.EXIT:
                                ending = event  # the body's end is read as well: the connection stays usable
                            elif (new := position.take(event)) is not None:
                                yield new
            finally:
                await response.aclose()
            if ending is None and follow:
                raise ConnectionFailed("the output ended before its execution did", details={"stage": "exchange"})
        except (ConnectionFailed, NodeUnavailable, FrameError, JSONDecodeError) as error:
            if ending is None:
                delay_s = attempts.delay_s(error)
                if delay_s is None:
                    raise _interrupted(execution_id, f"the server was away for {RECONNECT_S:.0f} s") from error
                await sleep(delay_s)
                continue
        except NotFound as error:
            if began and isinstance(gone := meanwhile(error), SandboxGone):
                raise gone from None
            if began:
                raise _interrupted(execution_id, "the server does not know it any more") from error
            raise
        if ending is not None:
            yield ending
        return


async def start(transport: AsyncTransport, sandbox_id: str, body: Any) -> ExecutionInfo:
    """Create a detached execution. Its id is in the body, so a request whose answer was lost is sent again."""
    attempts = Attempts()
    while True:
        try:
            answer = await transport.request("POST", sandbox_path(sandbox_id) + "/executions", json=body)
            return ExecutionInfo.from_json(answer.json())
        except (ConnectionFailed, NodeUnavailable) as error:
            delay_s = attempts.delay_s(error)
            if delay_s is None:
                raise
            await sleep(delay_s)


def _interrupted(execution_id: str, why: str) -> StreamInterrupted:
    return StreamInterrupted(
        f"how execution {execution_id} ended is not known: {why}",
        hint=f"attach again with box.execution({execution_id!r})",
        details={"execution_id": execution_id},
    )


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

    def __init__(
        self, transport: AsyncTransport, sandbox_id: str, execution_id: str, *, input_position: int | None = None
    ) -> None:
        self._transport = transport
        self._path = execution_path(sandbox_id, execution_id)
        self._input = AsyncInput(transport, self._path, input_position)
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
        events = follow_events(self._transport, self.sandbox_id, self.id, offset=offset, follow=follow)
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if event.type in (OutputType.STDOUT, OutputType.STDERR, OutputType.SKIPPED):
                    yield texts.chunk(event)
        for chunk in texts.last():
            yield chunk

    async def write_stdin(self, data: str | bytes, *, eof: bool = False) -> None:
        """Write to its standard input (started with `stdin_open=True`), waiting until its pipe has taken all of it.

        A broken connection or a server or node that restarts is borne, with one writer at a time. Raises Conflict when
        its input is not open (any more), StreamInterrupted when how much was taken can't be known."""
        raw = as_bytes(data)
        parts = list(cut(raw)) or [b""]
        for index, part in enumerate(parts):
            await self._input.write(part, eof=eof and index == len(parts) - 1)

    async def close_stdin(self) -> None:
        """End its standard input."""
        await self._input.write(b"", eof=True)

    async def attach(self, *, offset: int = 0, live: bool = False) -> AsyncAttachment:
        """Both directions of its terminal, output from byte `offset` on or, with `live`, from now on. To be closed.

        Raises Conflict when it has no terminal, NotFound, SandboxGone, ConnectionFailed."""
        return await AsyncAttachment.connect(self._transport, self._path, offset=offset, live=live)

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal. Raises Conflict when it has none or has ended."""
        size = terminal_size((columns, rows))
        await self._transport.request("POST", f"{self._path}/resize", json=size, idempotent=True)

    async def signal(self, signal: str | int, *, scope: str = "tree") -> None:
        """Send a signal ("SIGINT", 2) to all of its processes, or with scope="process" to the first one alone."""
        await self._transport.request("POST", f"{self._path}/signal", json={"signal": signal, "scope": scope})

    async def kill(self) -> None:
        """End all of its processes at once. It having ended already is success."""
        try:
            await self.signal("SIGKILL")
        except Conflict:
            pass
