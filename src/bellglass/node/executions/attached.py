"""Who is attached to a terminal: its output to him, what he types and the size of his window to it.

The one who came last holds the program back, and his place is kept for a while when his connection breaks. He counts
what he types, and is told how much of it lies in the terminal; coming again under the name that he gave he learns how
much of the rest had been taken, so that nothing is typed twice. After a restart of the node, which knows no names, the
total of all that was typed has to tell him that.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from bellglass.errors import BellglassError, Conflict, InvalidRequest
from bellglass.link import LinkStream
from bellglass.model import MAX_TERMINAL
from bellglass.node.executions import render
from bellglass.node.executions.log import Cursor
from bellglass.node.executions.registry import View
from bellglass.node.executions.run import Run
from bellglass.node.executions.stdin import StdinFeed
from bellglass.node.params import Params
from bellglass.wire.frames import Frame, FrameReader
from bellglass.wire.output import InputType, OutputEvent, OutputType, encode_event

MOST_TYPISTS = 64
"""Names remembered of one terminal."""


class Typist:
    """What one client has typed: `taken` of it went on its way, `acked` lies in the terminal."""

    def __init__(self) -> None:
        self.taken = 0
        self.acked = 0
        self.attached: asyncio.Task[None] | None = None
        self._under_way: deque[tuple[int, int]] = deque()
        """Ends of what was taken: of his own, and in all that was typed."""

    def took(self, count: int, end: int) -> None:
        if count:
            self.taken += count
            self._under_way.append((self.taken, end))

    def acknowledged(self, end: int) -> bool:
        """Whether more of his lies in the terminal, now that all up to `end` does."""
        before = self.acked
        while self._under_way and self._under_way[0][1] <= end:
            self.acked = self._under_way.popleft()[0]
        return self.acked > before


class _Shared:
    """A stream that two tasks send to, each piece whole."""

    def __init__(self, stream: LinkStream) -> None:
        self._stream = stream
        self._lock = asyncio.Lock()
        self.begun = asyncio.Event()

    async def send_head(self, head: dict[str, Any], *, end: bool = False) -> None:
        await self._stream.send_head(head, end=end)

    async def send(self, data: bytes) -> None:
        async with self._lock:
            await self._stream.send(data)
        self.begun.set()

    async def room(self) -> int:
        return await self._stream.room()


async def attach(
    view: View, stream: LinkStream, reading: render.Reading, client: str | None, active: Callable[[], object] | None
) -> None:
    """Until the execution has ended, the client has left (the end of his body) or his connection broke. `client`: his
    name; an attachment under the same one ends. `active` is called when he types."""
    run = view.run
    cursor = Cursor(view.log.total_bytes if reading.live else reading.offset)
    if run is None or run.terminal is None:
        await _begin_at(view, cursor)
        await render.streamed(view, stream, cursor, reading, _started(view, cursor, None, known=False))
        return
    await run.started()
    task = asyncio.current_task()
    assert task is not None
    typist, known = await _name(run, client)
    left = False
    run.reader_attached(cursor, holds=True)
    try:
        await run.input().known()
        await _begin_at(view, cursor)
        started = _started(view, cursor, typist, known=known)
        shared = _Shared(stream)
        output = asyncio.create_task(render.streamed(view, shared, cursor, reading, started))
        typed = asyncio.create_task(_typed(run, typist, stream, active))
        told = asyncio.create_task(_tell(run.input(), typist, shared))
        try:
            await asyncio.wait((output, typed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (output, typed, told):
                one.cancel()
            await asyncio.gather(output, typed, told, return_exceptions=True)
        # One that is over tells what went wrong, if anything did; else he has left, or the execution has ended.
        for one in (output, typed):
            if not one.cancelled():
                one.result()
        left = True
    except asyncio.CancelledError:
        if typist.attached is task:
            raise
        task.uncancel()
        raise Conflict("the same client has attached again", hint="give each client a name of its own") from None
    finally:
        if typist.attached is task:
            typist.attached = None
        run.reader_detached(cursor, hung_up=False, keep_place=not left)


async def _begin_at(view: View, cursor: Cursor) -> None:
    if cursor.offset:
        await view.log.seek(cursor)


async def _name(run: Run, client: str | None) -> tuple[Typist, bool]:
    """Who he is, and whether he was here before. Whoever else is attached under his name is sent away first."""
    assert run.terminal is not None
    typists = run.terminal.typists
    if client is None:
        typist = Typist()
        typist.attached = asyncio.current_task()
        return typist, False
    found = typists.pop(client, None)
    if found is None:
        typists[client] = typist = Typist()
        typist.attached = asyncio.current_task()
        for name in list(typists)[:-MOST_TYPISTS]:
            if (task := typists[name].attached) is None or task.done():
                del typists[name]
        return typist, False
    typists[client] = typist = found
    old, typist.attached = typist.attached, asyncio.current_task()
    if old is not None:
        old.cancel()
        await asyncio.wait([old])
    return typist, True


def _started(view: View, cursor: Cursor, typist: Typist | None, *, known: bool) -> dict[str, Any]:
    feed = view.run.stdin if view.run is not None else None
    return {
        "execution": view.record(),
        "offset": cursor.offset,
        "known": known,
        "input": typist.taken if typist is not None else 0,
        "total": feed.sent if feed is not None else 0,
    }


async def _typed(run: Run, typist: Typist, stream: LinkStream, active: Callable[[], object] | None) -> None:
    """What comes from the client, until he leaves."""
    feed, reader = run.input(), FrameReader()
    async for chunk in stream:
        for frame in reader.feed(chunk):
            if frame.type == InputType.TYPED:
                if active is not None:
                    active()
                try:
                    await feed.write(bytes(frame.payload), on_taken=lambda count: typist.took(count, feed.sent))
                except BellglassError:
                    if run.running:
                        raise
                    # It has ended: how is on its way to him.
                    await asyncio.Event().wait()
            elif frame.type == InputType.RESIZE:
                _resize(run, frame)


def _resize(run: Run, frame: Frame) -> None:
    try:
        size = Params(json.loads(bytes(frame.payload)))
    except (ValueError, AttributeError):
        raise InvalidRequest("a size that is no JSON object") from None
    columns, rows = (size.integer(name, least=1, most=MAX_TERMINAL) for name in ("cols", "rows"))
    assert run.terminal is not None
    run.terminal.resize(columns, rows)


async def _tell(feed: StdinFeed, typist: Typist, shared: _Shared) -> None:
    await shared.begun.wait()
    while True:
        at = feed.acked
        if typist.acknowledged(at):
            value = {"offset": typist.acked, "total": at}
            await shared.send(encode_event(OutputEvent(OutputType.INPUT, value=value)))
        await feed.acked_beyond(at)
