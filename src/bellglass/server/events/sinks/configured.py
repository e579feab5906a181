"""The sinks of the settings, each with its loop."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

from bellglass.errors import NoCapacity
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.events.feed import Feed
from bellglass.server.events.sinks.base import Sink, Source
from bellglass.server.events.sinks.jsonl import JsonFile, JsonLines
from bellglass.server.events.sinks.otlp import Otlp
from bellglass.server.events.sinks.ship import Shipper, keep_only
from bellglass.settings import Settings


def configured(settings: Settings, source: Source) -> list[Sink]:
    found: list[Sink] = []
    if url := settings["events.jsonl_url"]:
        found.append(JsonLines(url, settings["events.jsonl_headers"]))
    if endpoint := settings["events.otlp_endpoint"]:
        found.append(Otlp(endpoint, settings["events.otlp_headers"], source))
    if path := settings["events.jsonl_file"]:
        found.append(JsonFile(Path(path)))
    return found


async def ship(
    stack: AsyncExitStack, reader: Reader, writer: Writer, feed: Feed, settings: Settings, source: Source
) -> tuple[Shipper, ...]:
    """Until `stack` ends. Whoever comes back after a restart goes on where its cursor is."""
    sinks = configured(settings, source)
    with suppress(NoCapacity):  # on a full disk the first batch makes up for it
        await writer.run(partial(keep_only, names=[sink.name for sink in sinks]), spends=False)
    shippers = []
    for sink in sinks:
        stack.push_async_callback(sink.close)
        shippers.append(Shipper(reader, writer, feed, sink, source))
        task = asyncio.create_task(shippers[-1].run(), name=f"events:{sink.name}")
        stack.push_async_callback(_cancel, task)
    return tuple(shippers)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
