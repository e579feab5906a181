"""One call on a link: a head, a body in each direction with a window, an end, or a reset with an error.

A sender may have a window of bytes under way that the receiver's reader has not taken yet; a slow reader so stops its
own sender and nobody else. Answers begin with a small window, for there may be a thousand whose readers take nothing;
one whose reader has taken much gets a full one, while the connection has any to give. Bodies are bytes in pieces of at
most 256 KiB.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bellglass.errors import BellglassError, NodeUnavailable, from_dict
from bellglass.wire.frames import MAX_PAYLOAD, FrameError

if TYPE_CHECKING:
    from bellglass.link.connection import Connection

FULL_WINDOW = 1024 * 1024
ANSWER_WINDOW = 128 * 1024
GROW_AFTER_BYTES = 2 * 1024 * 1024
"""More than the buffers behind a reader take by themselves."""
FLAG_END = 1
FLAG_MORE = 2
MAX_HEAD_BYTES = 16 * 1024 * 1024
MAX_TOLD = 4096
"""Characters of an error's texts, where all of it is too long."""
_WINDOW = struct.Struct("<I")


class LinkType(IntEnum):
    HELLO = 1
    OPEN = 2
    HEAD = 3
    DATA = 4
    END = 5
    RESET = 6
    WINDOW = 7
    PING = 8
    PONG = 9


class LinkStream:
    """Either end of a call. Not made by hand: `LinkClient.open` and the handler of `LinkServer` give it."""

    def __init__(self, connection: Connection, stream_id: int, op: str, request_id: str | None) -> None:
        self.op = op
        self.request_id = request_id
        self.peer_gone: str | None = None
        """`reset`: the other side gave this call up; `link`: the whole link broke. None while neither is so."""
        self.on_peer_gone: Callable[[], object] | None = None
        """Called once when `peer_gone` gets its value."""
        self._connection = connection
        self._id = stream_id
        self._head: dict[str, Any] | None = None
        self._head_parts = b""
        self._chunks: deque[bytes] = deque()
        self._consumed = 0
        self._taken = 0
        self.window = FULL_WINDOW if connection.answers else ANSWER_WINDOW
        """What the peer may have under way."""
        self._send_window = self._most_window = ANSWER_WINDOW if connection.answers else FULL_WINDOW
        self._error: BellglassError | None = None
        self._remote_ended = False
        self._local_ended = False
        self._head_sent = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    # --- what the two ends call -------------------------------------------------------------------------

    @property
    def head_sent(self) -> bool:
        return self._head_sent

    @property
    def at_end(self) -> bool:
        """The other side's body is over and all of it was taken: the next piece would be none."""
        return self._remote_ended and not self._chunks and self._error is None

    async def head(self) -> dict[str, Any]:
        """The answer's head. Raises the error that the other side reset the stream with."""
        while self._head is None:
            if self._error is not None:
                raise self._error
            if self._remote_ended:
                raise NodeUnavailable(f"{self.op}: the answer ended without a head")
            self._readable.clear()
            await self._readable.wait()
        return self._head

    async def send_head(self, head: dict[str, Any], *, end: bool = False) -> None:
        self._head_sent = True
        payload = json.dumps(head, separators=(",", ":")).encode()
        # A long list is over one frame: it goes on in further HEAD frames.
        pieces = [payload[i : i + MAX_PAYLOAD] for i in range(0, len(payload), MAX_PAYLOAD)]
        for piece in pieces[:-1]:
            self._write(LinkType.HEAD, piece, flags=FLAG_MORE)
        self._write(LinkType.HEAD, pieces[-1], flags=FLAG_END if end else 0)
        if end:
            self._local_ended = True
            self._finish_if_done()

    async def send(self, data: bytes | memoryview) -> None:
        """Body bytes, which must stay as they are; waits for the window and for the socket. Raises the peer's error
        once it reset the stream."""
        view = memoryview(data)
        while view:
            await self._wait_window(min(len(view), self._good_piece()))
            await self._connection.drain()
            if self._error is not None:
                raise self._error
            piece = view[: min(self._send_window, MAX_PAYLOAD)]
            self._send_window -= len(piece)
            self._write(LinkType.DATA, piece)
            view = view[len(piece) :]

    async def room(self) -> int:
        """Until the peer takes a good piece more; answers how many bytes. Raises the peer's error once it reset the
        stream."""
        await self._wait_window(self._good_piece())
        return self._send_window

    async def end(self) -> None:
        """No more body from this side. Safe to repeat."""
        if not self._local_ended:
            self._local_ended = True
            self._write(LinkType.END)
            self._finish_if_done()

    async def reset(self, error: BellglassError | None = None) -> None:
        """Give the call up, with an error for the other side or none. Safe to repeat and after the end."""
        self._reset(error)

    def cancel(self) -> None:
        """`reset()` without an error, from where nothing can be awaited. This side's readers get NodeUnavailable."""
        self._reset(None)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body()

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            if self._chunks:
                chunk = self._chunks.popleft()
                self._give_window(len(chunk))
                yield chunk
            elif self._error is not None:
                raise self._error
            elif self._remote_ended:
                return
            else:
                self._readable.clear()
                await self._readable.wait()

    async def read_all(self, limit_bytes: int) -> bytes:
        """The whole body, for the small ones. Raises ValueError above the limit."""
        parts, size = [], 0
        async for chunk in self:
            size += len(chunk)
            if size > limit_bytes:
                raise ValueError(f"{self.op}: a body over {limit_bytes} bytes")
            parts.append(chunk)
        return b"".join(parts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not (self._local_ended and self._remote_ended):
            self._reset(None)

    # --- what the connection calls ----------------------------------------------------------------------

    def mark_local_end(self) -> None:
        """OPEN said that there is no body from this side."""
        self._local_ended = True

    def on_head(self, payload: bytes, *, more: bool) -> None:
        """Raises FrameError for one that is too long."""
        self._head_parts += payload
        if len(self._head_parts) > MAX_HEAD_BYTES:
            raise FrameError(f"a HEAD over {MAX_HEAD_BYTES} bytes")
        if not more:
            self._head = json.loads(self._head_parts)
            self._head_parts = b""
            self._readable.set()

    def on_data(self, payload: bytes) -> None:
        self._chunks.append(payload)
        self._readable.set()

    def on_end(self) -> None:
        self._remote_ended = True
        self._readable.set()
        self._finish_if_done()

    def on_window(self, more: int) -> None:
        self._send_window = min(self._send_window + more, 64 * FULL_WINDOW)
        self._most_window = max(self._most_window, self._send_window)
        self._writable.set()

    def on_gone(self, why: str, error: BellglassError) -> None:
        """The peer reset the stream, or the link broke."""
        if self._error is None:
            self.peer_gone = why
            self._error = error
            if self.on_peer_gone is not None:
                self.on_peer_gone()
        self._readable.set()
        self._writable.set()
        self._connection.forget(self._id)

    # --- inside -----------------------------------------------------------------------------------------

    def _good_piece(self) -> int:
        """Not in crumbs: a peer gives a quarter of its window at a time, so this much comes by itself."""
        return min(MAX_PAYLOAD, self._most_window * 3 // 4)

    async def _wait_window(self, count: int) -> None:
        while self._send_window < count and self._error is None:
            self._writable.clear()
            await self._writable.wait()
        if self._error is not None:
            raise self._error

    def _write(self, type: LinkType, payload: bytes | memoryview = b"", *, flags: int = 0) -> None:
        if self._error is None:
            self._connection.write(type, self._id, payload, flags=flags)

    def _give_window(self, taken: int) -> None:
        self._consumed += taken
        self._taken += taken
        if self._consumed < self.window // 4 or self._remote_ended:
            return
        more, self._consumed = self._consumed, 0
        if self.window < FULL_WINDOW and self._taken >= GROW_AFTER_BYTES and self._connection.may_grow(self._id):
            more += FULL_WINDOW - self.window
            self.window = FULL_WINDOW
        self._write(LinkType.WINDOW, _WINDOW.pack(more))

    def _reset(self, error: BellglassError | None) -> None:
        if self._error is not None or (self._local_ended and self._remote_ended):
            return
        self._write(LinkType.RESET, _told(error) if error is not None else b"{}")
        self._local_ended = self._remote_ended = True
        self._error = error or NodeUnavailable(f"{self.op}: given up by this side")
        self._readable.set()
        self._writable.set()
        self._connection.forget(self._id)

    def _finish_if_done(self) -> None:
        if self._local_ended and self._remote_ended:
            self._connection.forget(self._id)


def _told(error: BellglassError) -> bytes:
    """In one frame: the peer gives the whole link up for one that is longer, and what an error quotes may be a
    sandbox's."""
    shape = error.to_dict()["error"]
    raw = _dump(shape)
    if len(raw) > MAX_PAYLOAD:
        texts = {name: shape[name] and shape[name][:MAX_TOLD] for name in ("message", "hint")}
        raw = _dump(shape | texts | {"details": {}})
    return raw


def _dump(shape: dict[str, Any]) -> bytes:
    return json.dumps({"error": shape}, separators=(",", ":")).encode()


def error_of_reset(payload: bytes, op: str) -> BellglassError:
    """The exception for a RESET's payload; an empty one is a plain cancellation."""
    try:
        shape = json.loads(payload or b"{}")
    except ValueError:
        shape = {}
    if isinstance(shape, dict) and "error" in shape:
        return from_dict(shape)
    return NodeUnavailable(f"{op}: the other side gave the call up")
