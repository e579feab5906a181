"""Watches: what the node tells of a folder, with syncs in between. The API's WebSocket and foreign faces use it."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from bellglass.link import LinkStream

_TOKEN = struct.Struct("<Q")
_SYNCED = b'{"type":"synced"'
OWN_TOKENS_FROM = 2**62
"""Above what a client may choose."""


class Watching:
    """`async with`; leaving it ends the watch. One task iterates; any may `sync`."""

    def __init__(self, stream: LinkStream) -> None:
        self._stream = stream
        self._tokens = itertools.count(OWN_TOKENS_FROM)
        self._syncs: dict[int, asyncio.Future[None]] = {}
        self._failure: BaseException | None = None
        self._over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)
        await self._stream.__aexit__(kind, error, traceback)

    async def ask(self, token: int) -> None:
        """Have `{"type": "synced", "token"}` told behind all that has happened."""
        await self._stream.send(_TOKEN.pack(token))

    async def sync(self) -> None:
        """Until whoever iterates has got all that happened before this call, and asks for more. At once when the watch
        is over. Raises the error that it ended with."""
        if self._over:
            if self._failure is not None:
                raise self._failure
            return
        token = next(self._tokens)
        self._syncs[token] = asyncio.get_running_loop().create_future()
        try:
            await self.ask(token)
            await self._syncs[token]
        finally:
            self._syncs.pop(token, None)

    async def lines(self) -> AsyncIterator[bytes]:
        """The node's lines: JSON objects, `type` events or synced. The end: the folder is not there any more."""
        held = b""
        try:
            async for chunk in self._stream:
                *whole, held = (held + chunk).split(b"\n")
                for line in whole:
                    if line.startswith(_SYNCED) and self._settle(json.loads(line)["token"]):
                        continue
                    yield line
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)

    async def __aiter__(self) -> AsyncIterator[list[dict[str, Any]]]:
        """Events: `{"kind", "path", "dir", "cookie"}`."""
        async for line in self.lines():
            message = json.loads(line)
            if message["type"] == "events":
                yield message["events"]

    def _settle(self, token: int) -> bool:
        waiting = self._syncs.get(token)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        return token >= OWN_TOKENS_FROM

    def _end(self, error: BaseException | None) -> None:
        self._over = True
        self._failure = self._failure or (error if isinstance(error, Exception) else None)
        for waiting in self._syncs.values():
            if waiting.done():
                continue
            if self._failure is not None:
                waiting.set_exception(self._failure)
            else:
                waiting.set_result(None)
