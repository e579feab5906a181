"""Executions of the fake API: real processes of this machine, each with its log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

from bellglass.model import now
from bellglass.units import parse_duration
from bellglass.wire.output import OutputEvent, OutputType, encode_event


class Process:
    """One execution: its record and its log."""

    def __init__(self, record: dict[str, Any], body: dict[str, Any]) -> None:
        self.record = record
        self.body = body
        self.log: list[tuple[OutputType, int, bytes]] = []
        self.size = 0
        self.lost_bytes = 0
        self.changed = asyncio.Condition()
        self.process: asyncio.subprocess.Process | None = None
        self.input_bytes = 0
        self.done = False

    async def add(self, type: OutputType, data: bytes) -> None:
        async with self.changed:
            self.log.append((type, self.size, data))
            self.size += len(data)
            self.changed.notify_all()

    async def watch(self) -> None:
        """To its end."""
        process = self.process
        assert process is not None

        async def pump(stream: asyncio.StreamReader | None, type: OutputType) -> None:
            assert stream is not None
            while data := await stream.read(65536):
                await self.add(type, data)

        begun = time.monotonic()
        limit = self.body.get("timeout")
        try:
            async with asyncio.timeout(None if limit is None else parse_duration(limit, "timeout")):
                await asyncio.gather(pump(process.stdout, OutputType.STDOUT), pump(process.stderr, OutputType.STDERR))
                code = await process.wait()
        except TimeoutError:
            self.kill(signal.SIGKILL)
            code = await process.wait()
            self.record["timed_out"] = True
        killed = code < 0
        self.record.update(
            state="exited",
            exit_code=128 - code if killed else code,
            signal=signal.Signals(-code).name if killed else None,
            duration_s=time.monotonic() - begun,
            ended_at=now(),
        )
        async with self.changed:
            self.done = True
            self.changed.notify_all()

    def kill(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    async def events(self, offset: int, *, follow: bool, budget: int | None) -> AsyncIterator[bytes]:
        """Frames of its output. The stream is cut once it has told `budget` bytes."""
        yield encode_event(OutputEvent(OutputType.STARTED, value=self.record))
        if offset < self.lost_bytes:
            value = {"offset": offset, "bytes": self.lost_bytes - offset}
            yield encode_event(OutputEvent(OutputType.SKIPPED, value=value))
            offset = self.lost_bytes
        while True:
            for type, start, data in list(self.log):
                if start + len(data) <= offset:
                    continue
                data = data[max(offset - start, 0) :]
                if budget is not None and len(data) >= budget:
                    frame = encode_event(OutputEvent(type, offset, data[:budget]))
                    yield frame
                    raise ConnectionAbortedError
                if budget is not None:
                    budget -= len(data)
                yield encode_event(OutputEvent(type, offset, data))
                offset += len(data)
            async with self.changed:
                if offset >= self.size:
                    if self.done or not follow:
                        break
                    await self.changed.wait()
        if self.done:
            yield encode_event(OutputEvent(OutputType.EXIT, value=self.record))
