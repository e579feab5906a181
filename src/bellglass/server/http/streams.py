"""An answer whose status, headers and body come from the node, passed through unparsed.

A client that hangs up resets the stream (the node then decides what that means); so does the revocation of the key. A
link that breaks in mid-body cuts the connection instead of ending the body: a client must never take half for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bellglass.errors import BellglassError, NodeUnavailable, Unauthorized
from bellglass.link import LinkStream
from bellglass.server.auth.principal import KeyState


class Head(NamedTuple):
    status: int
    headers: Mapping[str, str]


def head_of_node(head: dict[str, Any]) -> Head:
    """Status and headers as the node rendered them."""
    return Head(int(head.get("status", 200)), head.get("headers") or {})


class LinkResponse(Response):
    """`render_head` turns the node's HEAD into status and headers; it may raise a BellglassError, which becomes the
    answer, like an error that the node gives before its HEAD. `in_our_words` may translate both."""

    def __init__(
        self,
        stream: LinkStream,
        key: KeyState,
        render_head: Callable[[dict[str, Any]], Head] = head_of_node,
        *,
        in_our_words: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._key = key
        self._render_head = render_head
        self._in_our_words = in_our_words
        self._given_up: BellglassError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive), name="client:watch")
        self._key.cuts.add(self._revoked)
        try:
            async with self._stream:
                await self._pass_on(scope, send)
        finally:
            self._key.cuts.discard(self._revoked)
            watcher.cancel()

    async def _pass_on(self, scope: Scope, send: Send) -> None:
        try:
            with self._in_our_words():
                head = self._render_head(await self._stream.head())
        except BellglassError:
            if self._given_up is not None:
                raise self._given_up from None
            raise
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in head.headers.items()]
        await send({"type": "http.response.start", "status": head.status, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        try:
            async for chunk in self._stream:
                # Short answers have arrived whole by now: one write less.
                last = self._stream.at_end
                await send({"type": "http.response.body", "body": chunk, "more_body": not last})
                if last:
                    return
        except BellglassError:
            return  # cut: uvicorn closes the connection of an answer that was not completed
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass  # the rest of a body that nobody wants
        self._give_up(NodeUnavailable("the client hung up"))

    def _revoked(self) -> None:
        self._give_up(Unauthorized("the key was revoked"))

    def _give_up(self, why: BellglassError) -> None:
        self._given_up = why
        self._stream.cancel()
