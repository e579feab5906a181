"""Events as they come: NDJSON without an end, with an empty line in each silence of some seconds.

It is cut, never ended: by a server that goes down, by the revocation of the key, by the client that hangs up. Whoever
goes on does so behind the `seq` that he saw last.
"""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bellglass.server.auth.principal import KeyState
from bellglass.server.events.service import Batch, Events
from bellglass.server.events.store import Selection

PIECE = 500
HEADERS = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]


class EventStream(Response):
    def __init__(self, events: Events, selection: Selection, first: Batch, key: KeyState, keepalive_s: float) -> None:
        super().__init__()
        self._events = events
        self._selection = selection
        self._first = first
        self._key = key
        self._keepalive_s = keepalive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        pouring = loop.create_task(self._pour(send), name="events:stream")
        leaving = loop.create_task(_left(receive), name="client:watch")

        def revoked() -> None:
            pouring.cancel()

        self._key.cuts.add(revoked)
        try:
            await asyncio.wait({pouring, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._key.cuts.discard(revoked)
            pouring.cancel()
            leaving.cancel()
            await asyncio.wait({pouring, leaving})
        if not pouring.cancelled() and (error := pouring.exception()) is not None:
            raise error

    async def _pour(self, send: Send) -> None:
        feed = self._events.feed
        with feed.following():
            await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            await _send(send, _lines(self._first))
            through = self._first.through
            while not feed.closed:
                grown = feed.grown()
                batch = await self._events.after(self._selection, through, PIECE)
                through = batch.through
                if batch.events:
                    await _send(send, _lines(batch))
                if len(batch.events) == PIECE:
                    continue
                try:
                    async with asyncio.timeout(self._keepalive_s):
                        await grown.wait()
                except TimeoutError:
                    await _send(send, b"\n")


def _lines(batch: Batch) -> bytes:
    return b"".join(json.dumps(event.to_json(), separators=(",", ":")).encode() + b"\n" for event in batch.events)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # a body that nobody wants
