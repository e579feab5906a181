"""Jobs for the one thread that has a database open for writing: those that wait together come as one batch.

A commit waits for the disk; of a hundred changes at once a hundred would. A waiter hears in its own loop, and only what
the thread delivers: after the commit.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

MAX_BATCH = 64
"""Jobs in one commit."""


class Job(NamedTuple):
    work: Callable[[Any], Any]
    spends: bool
    """Whether it may be given some of the ballast on a full disk."""
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Outcome(NamedTuple):
    job: Job
    value: Any = None
    error: BaseException | None = None


class WriteQueue:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def put(self, work: Callable[[Any], Any], *, spends: bool = True) -> asyncio.Future[Any]:
        """From a running loop; what the job gave, once it is delivered."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._jobs.put(Job(work, spends, future, loop))
        return future

    def close(self) -> None:
        """No job comes behind those that wait."""
        self._jobs.put(None)

    # --- in the thread ----------------------------------------------------------------------------------

    def next_batch(self) -> tuple[list[Job], bool]:
        """Waits for a job, and takes those that have come with it. True: these are the last, maybe none."""
        batch: list[Job] = []
        job = self._jobs.get()
        while job is not None:
            batch.append(job)
            if len(batch) == MAX_BATCH:
                return batch, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True


def deliver(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        try:
            outcome.job.loop.call_soon_threadsafe(_settle, outcome)
        except RuntimeError:
            continue  # the loop has ended: nobody waits any more


def _settle(outcome: Outcome) -> None:
    future = outcome.job.future
    if future.done():  # the waiter was cancelled; the change is made all the same
        return
    if outcome.error is not None:
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.value)
