"""Bytes that come in pieces, taken as heads, lines and bodies: from a visitor's connection or from a program's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from bellglass import http1
from bellglass.http1 import MAX_HEAD_BYTES, BadHead, Headers

PIECE_BYTES = 256 * 1024
MAX_LINE_BYTES = 4096


class Cut(Exception):
    """The bytes ended in the middle of something."""


class Source:
    """`more` gives the next piece, b"" at the end. What was read too far is kept."""

    def __init__(self) -> None:
        self.held = bytearray()

    async def more(self) -> bytes:
        raise NotImplementedError

    async def head(self) -> bytes | None:
        """A head with its empty line; None at the end before its first byte. Raises BadHead (too long), Cut."""
        return await self._until(http1.END, MAX_HEAD_BYTES)

    async def line(self) -> bytes:
        """Without its CRLF. Raises BadHead, Cut."""
        found = await self._until(b"\r\n", MAX_LINE_BYTES)
        if found is None:
            raise Cut
        return found[:-2]

    async def some(self, most: int = PIECE_BYTES) -> bytes:
        """What is there, at most so much; b"" at the end."""
        if self.held:
            taken = bytes(self.held[:most])
            del self.held[:most]
            return taken
        piece = await self.more()
        if len(piece) > most:
            self.held += piece[most:]
            return piece[:most]
        return piece

    async def _until(self, mark: bytes, limit: int) -> bytes | None:
        looked = 0
        while (at := self.held.find(mark, max(looked - len(mark), 0))) < 0:
            looked = len(self.held)
            if looked > limit:
                raise BadHead(f"more than {limit} bytes of headers")
            piece = await self.more()
            if not piece:
                if self.held:
                    raise Cut
                return None
            self.held += piece
        end = at + len(mark)
        if end > limit:
            raise BadHead(f"more than {limit} bytes of headers")
        found = bytes(self.held[:end])
        del self.held[:end]
        return found


class Upstream(Protocol):
    """A connection to the one who answers; a LinkStream is one. Raises errors of our tree."""

    async def send(self, data: bytes) -> None: ...

    async def end(self) -> None: ...

    def cancel(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class LinkSource(Source):
    """The program's side. Raises what the link raises."""

    def __init__(self, stream: Upstream) -> None:
        super().__init__()
        self._pieces = aiter(stream)

    async def more(self) -> bytes:
        return await anext(self._pieces, b"")


async def body(source: Source, length: int) -> AsyncIterator[bytes | Headers]:
    """Pieces of a body of so many bytes, or UNTIL_CLOSE; of a CHUNKED one without its framing, and its trailers as the
    last item. Raises Cut, BadHead."""
    if length == http1.CHUNKED:
        async for item in _chunks(source):
            yield item
        return
    left = None if length == http1.UNTIL_CLOSE else length
    while left is None or left > 0:
        piece = await source.some(PIECE_BYTES if left is None else min(left, PIECE_BYTES))
        if not piece:
            if left is None:
                return
            raise Cut
        yield piece
        left = None if left is None else left - len(piece)


async def _chunks(source: Source) -> AsyncIterator[bytes | Headers]:
    while True:
        left = http1.chunk_size(await source.line())
        if left == 0:
            break
        while left:
            piece = await source.some(min(left, PIECE_BYTES))
            if not piece:
                raise Cut
            yield piece
            left -= len(piece)
        if await source.line():
            raise BadHead("a chunk that is longer than its size")
    lines: list[bytes] = []
    taken = 0
    while line := await source.line():
        taken += len(line)
        if taken > MAX_HEAD_BYTES or len(lines) == http1.MAX_FIELDS:
            raise BadHead("too many trailers")
        lines.append(line)
    yield http1.fields(lines)
