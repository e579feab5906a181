"""Reading and following events, over connections that break: the number of the last one is where it goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from bellglass.errors import ConnectionFailed, NodeUnavailable
from bellglass.model import Event
from bellglass.sdk._async._compat import sleep
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._http import STREAM_TIMEOUT_S, target
from bellglass.sdk._patience import Patience

NDJSON = "application/x-ndjson"
PAGE = 500


async def read_events(
    transport: AsyncTransport,
    path: str,
    *,
    follow: bool = False,
    types: Sequence[str] = (),
    since: str | None = None,
    cursor: int | None = None,
    tail: int | None = None,
    more: Sequence[tuple[str, Any]] = (),
) -> AsyncIterator[Event]:
    """Those that there are, oldest first, and with `follow` those that come. See AsyncBox.events."""
    first = [*more, *(("type", one) for one in types), ("since", since)]
    if not follow or tail is not None:
        # A follower begins behind a number as well: one that only said "the newest" could not go on after a break.
        query = [*first, ("cursor", cursor), ("tail", tail), ("limit", PAGE)]
        while True:
            page = (await transport.request("GET", target(path, query), idempotent=True)).json()
            for item in page["items"]:
                yield Event.from_json(item)
            cursor = int(page["cursor"])
            if tail is not None or len(page["items"]) < PAGE:
                break
            query = [*first, ("cursor", cursor), ("limit", PAGE)]
    if not follow:
        return
    patience, began = Patience(), False
    while True:
        where = [*first, ("cursor", cursor), ("follow", True)]
        try:
            response = await transport.open("GET", target(path, where), accept=NDJSON, read_timeout_s=STREAM_TIMEOUT_S)
            try:
                began, rest = True, b""
                async with aclosing(response.__aiter__()) as chunks:  # type: ignore[type-var]
                    async for chunk in chunks:
                        patience.success()
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            if line:
                                event = Event.from_json(json.loads(line))
                                cursor = event.seq
                                yield event
            finally:
                await response.aclose()
        except (ConnectionFailed, NodeUnavailable):
            if not began:
                raise
        delay_s = patience.delay_s()
        if delay_s is None:
            raise ConnectionFailed(
                "following events: the server was away for too long",
                hint=f"go on with cursor={cursor}",
                details={"stage": "exchange"},
            )
        await sleep(delay_s)
