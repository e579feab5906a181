"""JSON lines: to a collector by POST, or to a file."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from bellglass.server.events.sinks.base import Record, SinkFailed
from bellglass.server.events.sinks.http import Collector

MEDIA_TYPE = "application/x-ndjson"


def lines(records: list[Record]) -> bytes:
    return b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)


class JsonLines:
    name = "jsonl"

    def __init__(self, url: str, headers: tuple[tuple[str, str], ...]) -> None:
        self._collector = Collector(url, headers, MEDIA_TYPE)

    async def send(self, records: list[Record]) -> None:
        await self._collector.post(lines(records))

    async def close(self) -> None:
        await self._collector.close()


class JsonFile:
    """Appended and on the disk before the cursor moves. Opened anew each time, so that it may be rotated away."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, records: list[Record]) -> None:
        try:
            await asyncio.to_thread(self._append, lines(records))
        except OSError as error:
            raise SinkFailed(f"{self._path}: {error.strerror}") from error

    async def close(self) -> None:
        pass

    def _append(self, data: bytes) -> None:
        with self._path.open("a+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":
                    data = b"\n" + data  # a write before was cut short: that line stays by itself
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
