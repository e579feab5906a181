"""gzip in either direction, a piece at a time."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator

from bellglass.errors import InvalidRequest, NotAcceptable

GZIP_WINDOW = 31
PIECE_BYTES = 256 * 1024
_WEIGHT = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")


def choose(accept: str | None) -> bool:
    """Whether an answer is to be compressed: where the client names nothing but gzip. Most clients name it among others
    without a need for it, and a file on its way through this machine costs more compressed. Raises NotAcceptable."""
    weights: dict[str, float] = {}
    for part in (accept or "").lower().split(","):
        coding, _, parameter = part.replace(" ", "").replace("\t", "").partition(";")
        if coding:
            match = _WEIGHT.fullmatch(parameter)
            weights[coding] = float(match[1]) if match is not None else 1.0
    if weights.get("identity", weights.get("*", 1.0)) > 0:
        return bool(weights) and weights.get("gzip", 0.0) > 0 and set(weights) == {"gzip"}
    if weights.get("gzip", weights.get("*", 0.0)) > 0:
        return True
    raise NotAcceptable(f"Accept-Encoding: {(accept or '')[:80]!r} leaves neither identity nor gzip")


async def compress(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(1, zlib.DEFLATED, GZIP_WINDOW)
    async for chunk in chunks:
        # A piece costs milliseconds, which others on this loop would wait for.
        if packed := await asyncio.to_thread(packer.compress, chunk):
            yield packed
    yield packer.flush()


async def decompress(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """However much a chunk becomes, it is given in pieces. Raises InvalidRequest for what is no whole gzip."""
    unpacker = zlib.decompressobj(GZIP_WINDOW)
    empty = True
    async for chunk in chunks:
        left = chunk
        while left:
            empty = False
            if unpacker.eof:  # a further member
                unpacker = zlib.decompressobj(GZIP_WINDOW)
            try:
                piece = await asyncio.to_thread(unpacker.decompress, left, PIECE_BYTES)
            except zlib.error as error:
                raise _broken(str(error)) from None
            if piece:
                yield piece
            left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    while not unpacker.eof:
        piece = unpacker.flush(PIECE_BYTES)
        if not piece:
            break
        yield piece
    if not unpacker.eof:
        raise _broken("it is empty" if empty else "it is cut off")


def _broken(why: str) -> InvalidRequest:
    return InvalidRequest(f"the body is no gzip: {why}", details={"field": "content-encoding"})
