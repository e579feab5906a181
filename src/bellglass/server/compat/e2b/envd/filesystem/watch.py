"""What changes in a folder: as a stream, or kept by this server for clients that ask again and again.

A kept watcher is as long-lived as the link to its node: one that is lost is unknown, as after a restart of E2B's own.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from bellglass.errors import BellglassError, FileMissing, FileTypeMismatch
from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.connect import envelope
from bellglass.server.compat.e2b.envd.errors import ConnectError
from bellglass.server.compat.e2b.envd.files.paths import acting, checked
from bellglass.server.compat.e2b.envd.filesystem.calls import stat_path
from bellglass.server.compat.e2b.envd.filesystem.entries import entry
from bellglass.server.compat.e2b.envd.messages import Message
from bellglass.server.compat.e2b.envd.streams import Client
from bellglass.server.compat.e2b.tokens import Tokens
from bellglass.server.files.watching import Watching

MOST_KEPT = 64
"""Watchers of one sandbox that are asked again and again."""
MOST_EVENTS = 10_000
"""That wait in one of them."""
MOST_CHARACTERS = 1024 * 1024
"""Of the paths of those that wait: one may be as long as a path can be."""
_TYPES = {
    "create": "EVENT_TYPE_CREATE",
    "write": "EVENT_TYPE_WRITE",
    "remove": "EVENT_TYPE_REMOVE",
    "rename": "EVENT_TYPE_RENAME",
    "chmod": "EVENT_TYPE_CHMOD",
}
_WITH_ENTRY = frozenset({"create", "write", "chmod"})
_START, _KEEPALIVE = envelope(b'{"start":{}}'), envelope(b'{"keepalive":{}}')


class Watch:
    """One folder that is watched. A task takes what the node tells, as long as there is room for it."""

    def __init__(self, call: Call, watching: Watching, path: str, *, entries: bool) -> None:
        self._call = call
        self._watching = watching
        self._path = path
        self._entries = entries
        self._events: deque[dict[str, Any]] = deque()
        self._characters = 0
        self._moved = asyncio.Event()
        self._room = asyncio.Event()
        self._over = False
        self._failure: Exception | None = None
        self._task = asyncio.create_task(self._take(), name="envd:file-watch")

    @classmethod
    async def open(cls, call: Call, message: Message) -> Watch:
        """Raises ConnectError and BellglassError."""
        path = checked(message.text("path"))
        try:
            watching = await call.services.files.watch(
                call.project_id, call.sandbox_id, path, call.request_id,
                recursive=message.flag("recursive"), **acting(call),
            )  # fmt: skip
        except FileMissing:
            raise ConnectError("not_found", f"path not found: {path}") from None
        except FileTypeMismatch:
            raise ConnectError("invalid_argument", f"path is not a directory: {path}") from None
        return cls(call, watching, path, entries=message.flag("includeEntry"))

    def when_failed(self, then: Callable[[], None]) -> None:
        """Called where it ends with an error of ours: of its sandbox, or of the way there."""
        self._task.add_done_callback(lambda _: then() if isinstance(self._failure, BellglassError) else None)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def next(self, limit_s: float) -> list[dict[str, Any]] | None:
        """What has happened since, as messages; empty after so long a silence, None once the folder is gone. Raises
        the error that it ended with, behind what had come before."""
        if not self._events and not self._over:
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._moved.wait()
        if not self._events and self._over:
            if self._failure is not None:
                raise self._failure
            return None
        return await self._drain()

    async def drain(self) -> list[dict[str, Any]]:
        """All that happened before this call. Raises the error that it ended with."""
        if not self._over:
            waiting = asyncio.create_task(self._watching.sync())
            while not waiting.done() and not self._over and not self._is_full:
                moved = asyncio.create_task(self._moved.wait())
                await asyncio.wait({waiting, moved}, return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
                self._moved.clear()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        if not self._events and self._failure is not None:
            raise self._failure
        return await self._drain()

    @property
    def _is_full(self) -> bool:
        return len(self._events) >= MOST_EVENTS or self._characters >= MOST_CHARACTERS

    async def _drain(self) -> list[dict[str, Any]]:
        taken = list(self._events)
        self._events.clear()
        self._characters = 0
        self._room.set()
        return [await self._message(event) for event in taken]

    async def _take(self) -> None:
        try:
            async with self._watching as watching:
                async for events in watching:
                    for event in events:
                        if event["kind"] == "overflow":
                            raise ConnectError("data_loss", "more changed than could be told: list the folder anew")
                        self._events.append(event)
                        self._characters += len(event["path"])
                    self._moved.set()
                    while self._is_full:
                        self._room.clear()
                        await self._room.wait()
        except (BellglassError, ConnectError) as error:
            self._failure = error
        finally:
            self._over = True
            self._moved.set()

    async def _message(self, event: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {"name": event["path"], "type": _TYPES[event["kind"]]}
        if self._entries and event["kind"] in _WITH_ENTRY:
            with suppress(ConnectError):  # it has gone since
                told["entry"] = entry(await stat_path(self._call, f"{self._path}/{event['path']}"))
        return told


async def watch_dir(call: Call, message: Message, client: Client) -> AsyncGenerator[bytes]:
    """Events as they come, to the end of the folder."""
    call.acts("file.watch", audited=False)
    watch = await Watch.open(call, message)
    gone = asyncio.Event()
    client.when_gone(gone.set)
    try:
        yield _START
        while not gone.is_set():
            events = await _unless(gone, watch, call.keepalive_s)
            if events is None:
                return
            if events:
                yield b"".join([envelope(json.dumps({"filesystem": event}).encode("ascii")) for event in events])
            elif not gone.is_set():
                yield _KEEPALIVE
    finally:
        await watch.close()


async def _unless(gone: asyncio.Event, watch: Watch, limit_s: float) -> list[dict[str, Any]] | None:
    """The next events, or none when the client has gone."""
    hung_up, following = asyncio.create_task(gone.wait()), asyncio.create_task(watch.next(limit_s))
    try:
        await asyncio.wait({hung_up, following}, return_when=asyncio.FIRST_COMPLETED)
        return await following if following.done() else []
    finally:
        hung_up.cancel()
        following.cancel()


class Kept:
    """Watchers by sandbox and id. One that has ended with its sandbox goes with it."""

    def __init__(self) -> None:
        self._watches: dict[str, dict[str, Watch]] = {}

    def add(self, sandbox_id: str, watch: Watch) -> str:
        watcher_id = secrets.token_hex(8)
        self._watches.setdefault(sandbox_id, {})[watcher_id] = watch
        watch.when_failed(lambda: self._discard(sandbox_id, watcher_id))
        return watcher_id

    def check_room(self, sandbox_id: str) -> None:
        """Raises ConnectError."""
        if len(self._watches.get(sandbox_id, ())) >= MOST_KEPT:
            raise ConnectError("resource_exhausted", f"this sandbox has {MOST_KEPT} watchers: remove some")

    def get(self, sandbox_id: str, watcher_id: str) -> Watch:
        """Raises ConnectError."""
        watch = self._watches.get(sandbox_id, {}).get(watcher_id)
        if watch is None:
            raise ConnectError("not_found", f"watcher {watcher_id[:80]!r} not found")
        return watch

    def pop(self, sandbox_id: str, watcher_id: str) -> Watch:
        """Raises ConnectError."""
        watch = self.get(sandbox_id, watcher_id)
        self._discard(sandbox_id, watcher_id)
        return watch

    def _discard(self, sandbox_id: str, watcher_id: str) -> None:
        of_sandbox = self._watches.get(sandbox_id, {})
        of_sandbox.pop(watcher_id, None)
        if not of_sandbox:
            self._watches.pop(sandbox_id, None)


_KEPT: WeakKeyDictionary[Tokens, Kept] = WeakKeyDictionary()
"""By server."""


def _kept(call: Call) -> Kept:
    kept = _KEPT.get(call.services.e2b)
    if kept is None:
        _KEPT[call.services.e2b] = kept = Kept()
    return kept


async def create_watcher(call: Call, message: Message) -> dict[str, Any]:
    call.acts("file.watch", audited=False)
    kept = _kept(call)
    kept.check_room(call.sandbox_id)
    return {"watcherId": kept.add(call.sandbox_id, await Watch.open(call, message))}


async def get_watcher_events(call: Call, message: Message) -> dict[str, Any]:
    """All that happened before the call and was not told yet."""
    call.acts("file.watch", audited=False)
    return {"events": await _kept(call).get(call.sandbox_id, message.text("watcherId")).drain()}


async def remove_watcher(call: Call, message: Message) -> dict[str, Any]:
    call.acts("file.watch", audited=False)
    await _kept(call).pop(call.sandbox_id, message.text("watcherId")).close()
    return {}
