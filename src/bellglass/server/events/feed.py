"""Telling those who follow events that there are more, at most every few hundredths of a second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from bellglass.server.db.writer import Writer
from bellglass.server.events import store

TOGETHER_S = 0.05
"""Commits of that time are told as one."""


class Feed:
    """While somebody is `following`, `grown` tells of commits that added events. Made on the loop."""

    def __init__(self, writer: Writer) -> None:
        self._loop = asyncio.get_running_loop()
        self._grown = asyncio.Event()
        self._followers = 0
        self._told = False
        self.closed = False
        writer.after_commit = self._committed

    @contextmanager
    def following(self) -> Iterator[None]:
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1

    def grown(self) -> asyncio.Event:
        """Take it before reading; it is set once there is more, or when the server goes down (`closed`)."""
        return self._grown

    def close(self) -> None:
        self.closed = True
        self._tell()

    def _committed(self, connection: Connection) -> None:
        """In the writer's thread, after each commit."""
        if connection.info.pop(store.ADDED, False) and self._followers and not self._told:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._loop.call_later, TOGETHER_S, self._tell)
            except RuntimeError:
                return  # the loop has ended: nobody follows any more

    def _tell(self) -> None:
        self._told = False
        self._grown.set()
        self._grown = asyncio.Event()
