"""A watch: an operation without an end of its own, whose records become lines of JSON for the client.

A sandbox makes changes as fast as it likes, and each is work for the node's loop. What that costs is counted for each
sandbox: beyond its share its watches aren't read from for a while, the kernel inside fills its queue and says
`overflow`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

from bellglass.errors import LimitExceeded, NotSupported
from bellglass.node.files.errors import clean
from bellglass.node.files.lists import MAX_RECORD_BYTES
from bellglass.node.files.stream import FileStream
from bellglass.node.files.watches import Watches
from bellglass.node.guestlink.session import LINK_WAIT_S
from bellglass.node.live import LiveSandbox
from bellglass.wire import guest
from bellglass.wire.frames import FrameError
from bellglass.wire.guest import FileOp
from bellglass.wire.guest_watch import Change, Changed, decode_change

MAX_WATCHES = 16
MAX_FOLDERS = 131_072
"""Of one watch."""
LINE_BYTES = 64 * 1024
"""About so much is in one line; one event more may always be."""
TURN_BYTES = 8 * 1024
"""Records are a dozen bytes at least: so much of them takes the loop a few milliseconds."""
KINDS = {
    Change.CREATE: "create",
    Change.WRITE: "write",
    Change.REMOVE: "remove",
    Change.RENAME: "rename",
    Change.CHMOD: "chmod",
    Change.OVERFLOW: "overflow",
}


class WatchStream(FileStream):
    """`async with WatchStream(live, path, ...) as watch:`, `await watch.ready()`, then `lines()`. An open watch is no
    activity: a sandbox that nobody uses is idle all the same."""

    def __init__(self, live: LiveSandbox, path: str, **fields: Any) -> None:
        super().__init__(live, FileOp.WATCH, path, max_entries=MAX_FOLDERS, **fields)
        self._watches: Watches = live.watches
        self._records = RecordReader()
        self._pieces = self.chunks(wait_s=None)
        self._rest = memoryview(b"")
        """Of the last piece, not looked at yet."""
        self._first: list[Changed] = []
        self._spent_s = 0.0

    async def __aenter__(self) -> Self:
        hello = await self._live.session.wait_link(asyncio.get_running_loop().time() + LINK_WAIT_S)
        if not hello.features & guest.FEATURE_WATCH:
            raise NotSupported(
                "the sandbox was started by a release that watches no files", hint="create the sandbox anew"
            )
        if self._watches.open >= MAX_WATCHES:
            raise LimitExceeded(
                f"{self._watches.open} watches are open in this sandbox, the most at once is {MAX_WATCHES}",
                hint="end one, or watch a folder above with recursive",
            )
        self._watches.open += 1
        try:
            self._live.session.attach(self)
        except BaseException:
            self._watches.open -= 1
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watches.open -= 1
        if self._failure is None and self._result is None:
            self.session.send(guest.encode_abort(self.id))
        self.session.release(self)

    async def ready(self) -> None:
        """What happens from here on is told. Raises the operation's error, FrameError for one that does not begin."""
        self._first = await self._next()
        if not self._first or self._first.pop(0).kind != Change.READY:
            raise FrameError("a watch that tells or ends before it is ready")

    async def lines(self) -> AsyncIterator[bytes]:
        """One JSON object each, with its end of line. The end: the watched folder is not there any more."""
        changes = self._first
        while True:
            began = time.perf_counter()
            lines = list(render(changes))
            pause_s = self._watches.budget.spend(self._spent_s + time.perf_counter() - began)
            self._spent_s = 0.0
            for line in lines:
                yield line
            await asyncio.sleep(pause_s)
            changes = await self._next()
            if not changes:
                await self.result()
                return

    async def _next(self) -> list[Changed]:
        """What the next bytes hold, a turn's worth; nothing at their end."""
        while True:
            if not self._rest:
                self._rest = await anext(self._pieces, memoryview(b""))
                if not self._rest:
                    return []
            turn, self._rest = self._rest[:TURN_BYTES], self._rest[TURN_BYTES:]
            began = time.perf_counter()
            changes = self._records.feed(turn)
            self._spent_s += time.perf_counter() - began
            if changes:
                return changes


class RecordReader:
    """Bytes in, records out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[Changed]:
        """Raises FrameError."""
        buffer, position, found = self._buffer, 0, []
        buffer += data
        while len(buffer) - position >= 4:
            length = int.from_bytes(buffer[position : position + 4], "little")
            if length > MAX_RECORD_BYTES:
                raise FrameError(f"a record of {length} bytes")
            if len(buffer) - position - 4 < length:
                break
            found.append(decode_change(bytes(buffer[position + 4 : position + 4 + length])))
            position += 4 + length
        del buffer[:position]
        return found


def render(changes: list[Changed]) -> Iterator[bytes]:
    """`{"type": "events", "events": [...]}` and `{"type": "synced", "token"}`, in order."""
    held: list[str] = []
    size = 0
    for change in changes:
        if change.kind in KINDS:
            held.append(_event(change))
            size += len(held[-1])
            if size < LINE_BYTES:
                continue
        if held:
            yield ('{"type":"events","events":[' + ",".join(held) + "]}\n").encode()
            held, size = [], 0
        if change.kind == Change.SYNCED:
            yield b'{"type":"synced","token":%d}\n' % change.token
    if held:
        yield ('{"type":"events","events":[' + ",".join(held) + "]}\n").encode()


def _event(change: Changed) -> str:
    path = json.dumps(clean(change.name) or ".")
    folder = "true" if change.folder else "false"
    return f'{{"kind":"{KINDS[change.kind]}","path":{path},"dir":{folder},"cookie":{change.cookie or "null"}}}'
