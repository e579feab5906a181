"""An execution's output as the body of an answer: frames, NDJSON, or one buffered JSON.

The reader that started a waiting execution blocks the program when it is slow and so gets every byte; all others
read the log's ring and may be told of a gap. Streams carry a keepalive in every so many seconds of silence; a
buffered answer holds its head back as long, so that what goes wrong early still has its own status, and then sends
spaces.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from bellglass.errors import InvalidRequest
from bellglass.link import LinkStream
from bellglass.node.executions.log import MAX_CHUNK_BYTES, Chunk, Cursor
from bellglass.node.executions.registry import View
from bellglass.node.executions.run import Run
from bellglass.wire.guest import STDERR, STDOUT
from bellglass.wire.output import (
    FRAMES,
    JSON,
    NDJSON,
    HeadTail,
    NdjsonEncoder,
    OutputEvent,
    OutputType,
    encode_event,
)

ACCEPTS = {"json": JSON, "ndjson": NDJSON, "frames": FRAMES}
BUFFERED_BYTES = 1024 * 1024
HEADS_BYTES = 8 * 1024
"""Left for what rendering adds."""
_TYPES = {STDOUT: OutputType.STDOUT, STDERR: OutputType.STDERR}


def check_accept(accept: str) -> str:
    if accept not in ACCEPTS:
        raise InvalidRequest(f"accept: {accept!r} is none of {', '.join(ACCEPTS)}", details={"field": "accept"})
    return accept


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader asked for. `starter`: it started the execution, or goes on for the one that did; `follow`: to the
    execution's end; `live`: from now on alone, whatever `offset` says; `holds`: the program never gets far ahead of it,
    for as long as it reads."""

    accept: str
    keepalive_s: float
    offset: int = 0
    follow: bool = False
    starter: bool = False
    live: bool = False
    holds: bool = False


class Answer(Protocol):
    """As much of a LinkStream as rendering needs."""

    async def send_head(self, head: dict[str, Any], *, end: bool = False) -> None: ...

    async def send(self, data: bytes) -> None: ...

    async def room(self) -> int: ...


async def deliver(view: View, stream: LinkStream, reading: Reading) -> None:
    """Send the whole answer: head, body, end.

    A cancellation because the client hung up is told to the execution; one because the link broke is not. Raises why it
    could not be started."""
    cursor = Cursor(view.log.total_bytes if reading.live else reading.offset)
    run = view.run
    if run is not None:
        run.reader_attached(cursor, starter=reading.starter, holds=reading.holds)
    try:
        if run is not None:
            await run.started()
        if cursor.offset:
            await view.log.seek(cursor)
        if reading.accept == "json":
            await _buffered(view, stream, cursor, reading)
        else:
            await streamed(view, stream, cursor, reading, view.record())
    finally:
        if run is not None:
            run.reader_detached(cursor, hung_up=stream.peer_gone == "reset", keep_place=not reading.holds)


async def streamed(view: View, stream: Answer, cursor: Cursor, reading: Reading, started: dict[str, Any]) -> None:
    """The head, `started`, the output from the cursor on, and its end."""
    encode: Callable[[OutputEvent], bytes] = encode_event if reading.accept == "frames" else NdjsonEncoder().encode
    await stream.send_head({"status": 200, "headers": {"content-type": ACCEPTS[reading.accept]}})
    await stream.send(encode(OutputEvent(OutputType.STARTED, value=started)))
    while True:
        # No more than is taken, and nothing while nothing is: a thousand readers may be slow.
        if piece := _next_piece(view, cursor, encode, await stream.room()):
            await stream.send(piece)
            _progressed(view.run)
        elif not reading.follow and not view.log.finished:
            return
        elif not await _more(view, cursor, reading.keepalive_s):
            break
        elif cursor.offset >= view.log.total_bytes and not view.log.finished:
            await stream.send(encode(OutputEvent(OutputType.KEEPALIVE)))
    if (error := view.failure()) is not None:
        await stream.send(encode(OutputEvent(OutputType.ERROR, value=error.to_dict())))
    else:
        await stream.send(encode(OutputEvent(OutputType.EXIT, value=view.record())))


def _next_piece(view: View, cursor: Cursor, encode: Callable[[OutputEvent], bytes], room_bytes: int) -> bytes:
    """What follows the cursor, rendered: about as much as there is room for; empty when there is nothing."""
    chunks = view.log.read(cursor, min(room_bytes - HEADS_BYTES, MAX_CHUNK_BYTES))
    return b"".join([encode(_event(chunk)) for chunk in chunks])


async def _buffered(view: View, stream: LinkStream, cursor: Cursor, reading: Reading) -> None:
    kept = {STDOUT: HeadTail(BUFFERED_BYTES), STDERR: HeadTail(BUFFERED_BYTES)}
    gap = False
    while True:
        if chunks := view.log.read(cursor):
            for chunk in chunks:
                if chunk.stream:
                    kept[chunk.stream].feed(chunk.data)
                else:
                    gap = True
            _progressed(view.run)
            if view.run is None:
                await asyncio.sleep(0)  # a long log is read in turns of the loop
        elif (not reading.follow and not view.log.finished) or not await _more(view, cursor, reading.keepalive_s):
            break
        elif cursor.offset >= view.log.total_bytes and not view.log.finished:
            await _head_once(stream)
            await stream.send(b" ")
    if reading.follow and (error := view.failure()) is not None:
        raise error
    await _head_once(stream)
    await stream.send(_result(view, kept, gap=gap))


async def _head_once(stream: LinkStream) -> None:
    if not stream.head_sent:
        await stream.send_head({"status": 200, "headers": {"content-type": JSON}})


def _result(view: View, kept: dict[int, HeadTail], *, gap: bool) -> bytes:
    record = dict(view.record())
    if gap or any(part.truncated for part in kept.values()):
        record["truncated"] = True
    body: dict[str, object] = {"execution": record}
    for name, part in (("stdout", kept[STDOUT]), ("stderr", kept[STDERR])):
        raw = part.value()
        try:
            body[name], body[f"{name}_b64"] = raw.decode("utf-8"), None
        except UnicodeDecodeError:
            body[name] = raw.decode("utf-8", "replace")
            body[f"{name}_b64"] = base64.b64encode(raw).decode("ascii")
        body[f"{name}_omitted_bytes"] = part.omitted_bytes
    return json.dumps(body, separators=(",", ":")).encode()


async def _more(view: View, cursor: Cursor, keepalive_s: float) -> bool:
    """False at the end. True: there is more, or the silence has lasted for a keepalive."""
    try:
        async with asyncio.timeout(keepalive_s):
            return await view.log.wait(cursor)
    except TimeoutError:
        return True


def _event(chunk: Chunk) -> OutputEvent:
    if chunk.stream == 0:
        return OutputEvent(OutputType.SKIPPED, value={"offset": chunk.offset, "bytes": chunk.length})
    return OutputEvent(_TYPES[chunk.stream], chunk.offset, chunk.data)


def _progressed(run: Run | None) -> None:
    if run is not None:
        run.reader_progressed()
