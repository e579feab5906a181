"""Measuring every sandbox every few seconds, in a thread of its own.

An idle sandbox costs one small read and one small write: where no CPU time has passed since the sample before, memory
and disk stand where they did, but for what the kernel writes out or takes back behind a program that has ended. So they
are looked at again for SETTLE_S after the last activity, and each SETTLE_S from then on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bellglass.node.drivers.base import HasUsage, Usage
from bellglass.node.live import LiveSandbox
from bellglass.node.metrics.history import History, Sample

SETTLE_S = 60.0
BUSY_PART = 0.1
"""The thread takes at most this part of a CPU, whatever its looks cost."""
log = logging.getLogger("bellglass.metrics")


class Watched:
    """A sandbox as the thread knows it."""

    def __init__(self, handle: HasUsage, history: History) -> None:
        self.handle = handle
        self.history = history
        self.last = history.last()
        self._lock = threading.Lock()
        self._closed = False
        self._usage: Usage | None = None
        self._usage_at = self._active_at = time.monotonic()
        self._began: tuple[float, int] | None = None
        """When it was looked at first, and its CPU time then."""

    def look(self, *, keep: bool) -> Sample:
        """Measure now; with `keep` it goes into the history. Raises OSError for a machine that ends just now, or when
        the host's disk does."""
        with self._lock:
            now, at, cpu_ns = time.monotonic(), round(time.time(), 6), self.handle.cpu_ns()
            before = self.last
            if before is None or cpu_ns != before.cpu_ns:
                self._active_at = now
            if self._usage is None or now - self._active_at < SETTLE_S or now - self._usage_at >= SETTLE_S:
                self._usage, self._usage_at = self.handle.usage(), now
            usage = self._usage
            if before is None and self._began is None:
                # What it cost to start it, maybe long before in a pool, is nobody's load.
                self._began = at, cpu_ns
            since, spent = (before.at, before.cpu_ns) if before is not None else self._began or (at, cpu_ns)
            # A clock that was set back, or a machine that was started anew and counts from 0.
            passed_s = at - since
            share = (cpu_ns - spent) / 1e9 / passed_s if passed_s > 0 and cpu_ns >= spent else 0.0
            sample = Sample(at, cpu_ns, share, usage.memory_used, usage.memory_cache, usage.disk_used)
            if keep and not self._closed:
                self.last = sample
                self.history.add(sample)
            return sample

    def close(self) -> None:
        """Nothing is written from now on: the folder is about to go."""
        with self._lock:
            self._closed = True


class Sampler:
    """`sandboxes` is called in the thread; `folder(id)` is where a sandbox's history lies. `start` gets
    `is_low`: nothing is written while the host's disk is full."""

    def __init__(
        self,
        sandboxes: Callable[[], Iterable[LiveSandbox]],
        folder: Callable[[str], Path],
        interval_s: float,
    ) -> None:
        self._sandboxes = sandboxes
        self._folder = folder
        self._interval_s = interval_s
        self._is_low: Callable[[], bool] = bool
        self._watched: dict[str, Watched] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self, is_low: Callable[[], bool]) -> None:
        self._is_low = is_low
        self._thread.start()

    async def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def watched(self, live: LiveSandbox) -> Watched | None:
        """In any thread; None where the driver can't measure, or for one that has ended."""
        if not isinstance(live.handle, HasUsage):
            return None
        with self._lock:
            if live.closed:
                return None
            known = self._watched.get(live.sandbox_id)
            if known is None or known.handle is not live.handle:
                known = Watched(live.handle, History(self._folder(live.sandbox_id)))
                self._watched[live.sandbox_id] = known
            return known

    def release(self, sandbox_id: str) -> None:
        """Its sandbox has ended, and its folder is about to be removed. In any thread."""
        with self._lock:
            known = self._watched.pop(sandbox_id, None)
        if known is not None:
            known.close()

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._stop.wait(pause_s):
            began = time.monotonic()
            try:
                self._look()
            except Exception:  # one failure must not end all measuring
                log.exception("measuring failed")
            took_s = time.monotonic() - began
            pause_s = max(self._interval_s - took_s, took_s / BUSY_PART)

    def _look(self) -> None:
        there = {live.sandbox_id: live for live in self._sandboxes()}
        with self._lock:
            for sandbox_id in self._watched.keys() - there.keys():
                del self._watched[sandbox_id]
        if self._is_low():
            return
        for sandbox_id, live in there.items():
            if self._stop.is_set():
                return
            try:
                if (watched := self.watched(live)) is not None:
                    watched.look(keep=True)
            except OSError as error:  # it may be ending just now
                log.debug("sandbox %s can't be measured: %s", sandbox_id, error)
