"""`box.files.watch()`: what changes in a folder, as it happens, and with `sync` all that has happened."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Self

from bellglass.model import FileEvent
from bellglass.sdk._async._compat import AsyncLock
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._async.websocket import AsyncWebSocket


class AsyncWatch:
    """Iterate it, or ask it from time to time with `sync`. To be closed; so is its end when the folder is removed or
    renamed (the last event is of "."), while the error with which a sandbox or node ended it is raised."""

    def __init__(self, socket: AsyncWebSocket) -> None:
        self._socket = socket
        self._events: deque[FileEvent] = deque()
        self._asked = 0
        self._synced = 0
        self._over = False
        self._lock = AsyncLock()

    @classmethod
    async def open(cls, transport: AsyncTransport, where: str) -> Self:
        watch = cls(await AsyncWebSocket.connect(transport, where))
        await watch._read()  # `ready`
        return watch

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        while True:
            while self._events:
                yield self._events.popleft()
            if self._over:
                return
            async with self._lock:
                if not self._events:
                    await self._read()

    async def sync(self) -> list[FileEvent]:
        """All events of what happened before this call that were not taken yet, also by an iteration. Raises
        StreamInterrupted, NodeUnavailable (watch anew, and look at the folder: what happened meanwhile is not told),
        SandboxGone."""
        self._asked += 1
        wanted = self._asked
        if not self._over:
            await self._socket.send(json.dumps({"type": "sync", "token": wanted}))
        while self._synced < wanted and not self._over:
            async with self._lock:
                if self._synced < wanted:
                    await self._read()
        events = list(self._events)
        self._events.clear()
        return events

    async def _read(self) -> None:
        message = await self._socket.receive()
        if message is None:
            self._over = True
            return
        told = json.loads(message)
        if told["type"] == "events":
            self._events += [FileEvent.from_json(event) for event in told["events"]]
        elif told["type"] == "synced":
            self._synced = max(self._synced, told["token"])

    async def aclose(self) -> None:
        """End the watch. Safe to repeat."""
        await self._socket.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
