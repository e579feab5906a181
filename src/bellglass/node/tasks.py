"""Tasks that end with whoever began them. One that fails by itself is logged, since nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any


class Tasks:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)

    def has(self, name: str) -> bool:
        return any(task.get_name() == name for task in self._running)

    async def close(self) -> None:
        """Cancel them, and wait until they have ended; the task that calls this is left alone."""
        others = [task for task in self._running if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s failed", task.get_name(), exc_info=error)
