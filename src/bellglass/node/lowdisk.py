"""The disk below its low-water mark: executions are frozen before a guest's write can find no room.

A sandbox's disk is a sparse file. When the host's disk has no block left for it, a write that the guest finished long
ago is lost, and the file system inside breaks: for every sandbox, not for the one that wrote. So below the mark every
execution of every sandbox stands still, never an agent: reads, lists, deletes go on, and what would write is refused
with `no_capacity`. Refused, not made to wait: a caller can delete something, a connection that waits can't. All goes on
by itself once there is room again. The clocks go on meanwhile: a timeout is how long a caller wants to wait.

Bytes that guests have written, but the kernel not yet to the disk, count as gone: it writes them whether their writers
are frozen or not. The look is never later than a writer of RATE_BYTES_S needs to the mark, or LEAST_PAUSE_S: below it
he gets RATE_BYTES_S * LEAST_PAUSE_S = 80 MiB further, and what the thread waits for a CPU. A single write(2) is not
interrupted by freezing: below half of the mark, and while it goes on falling, executions that are still not frozen
KILL_AFTER_S after they were told to are killed.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bellglass.ballast import Ballast, free_bytes
from bellglass.errors import BellglassError, DiskFull, InternalError, NoCapacity
from bellglass.model import now
from bellglass.node.live import LiveSandbox
from bellglass.units import format_size

RATE_BYTES_S = 4 * 2**30
LEAST_PAUSE_S, MOST_PAUSE_S = 0.02, 2.0
FROZEN_PAUSE_S = 0.25
KILL_AFTER_S = 0.1
FROZEN_FOR = "disk"
BUSY_PART = 0.2
"""The thread takes at most this part of a CPU, whatever its looks cost."""
log = logging.getLogger("bellglass.lowdisk")


class LowDisk:
    """`start` after the sandboxes are recovered: what an earlier node froze is thawed if there is room by now."""

    def __init__(
        self,
        folder: Path,
        mark_bytes: int,
        ballast: Ballast,
        sandboxes: Callable[[], Iterable[LiveSandbox]],
        on_change: Callable[[bool, int], None],
        *,
        is_low: bool,
        reserve: Ballast | None = None,
    ) -> None:
        """`sandboxes` is called in a thread; `on_change(is_low, free bytes)` on the loop. `is_low`: what an earlier
        node has told last. `reserve`: another ballast to keep."""
        self.is_low = is_low
        self.since = now()
        self._folder = folder
        self._mark = mark_bytes
        self._enough = mark_bytes * 5 // 4
        """A little more than the mark, or it would go to and fro with each block."""
        self._ballasts = [ballast] if reserve is None else [ballast, reserve]
        self._sandboxes = sandboxes
        self._on_change = on_change
        self._free = 0
        self._since = time.monotonic()
        self._pause_s = LEAST_PAUSE_S
        self._is_undone = False
        """Some sandbox is not as it should be: the next look tries again."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lowdisk", daemon=True)
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Returns after the first look."""
        await asyncio.to_thread(self._look, first=True)
        self._thread.start()

    async def close(self) -> None:
        """What is frozen stays so: the next node thaws it."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def report(self) -> dict[str, Any]:
        """The `disk` of `node.info`."""
        return {
            "low": self.is_low,
            "since": self.since,
            "free_bytes": free_bytes(self._folder),
            "low_water_bytes": self._mark,
            "enough_bytes": self._enough,
        }

    # --- for operations ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Before anything new that writes. Raises NoCapacity (resource disk) while it is low."""
        if self.is_low:
            raise self._refusal()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Around a write into a sandbox: `check`, and an error that is the host's disk's fault is told as that."""
        self.check()
        try:
            yield
        except (DiskFull, InternalError) as error:
            if self.is_low and error.details.get("errno") in ("ENOSPC", "EIO", "EROFS"):
                raise self._refusal() from error
            raise

    def _refusal(self) -> BellglassError:
        return NoCapacity(
            f"disk: the node's disk has {format_size(max(self._free, 0))} left: executions are frozen, and nothing new "
            f"is started or written, until it has {format_size(self._enough)}",
            hint="delete sandboxes or files in them, or let the operator free some of the host's disk; then retry",
            details={"resource": "disk", "free": max(self._free, 0), "needed": self._enough},
        )

    # --- in the thread ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stop.wait(self._pause_s):
            try:
                self._look()
            except Exception:  # a watch that ended would be a disk that fills up
                log.exception("looking at the disk failed")
                self._pause_s = FROZEN_PAUSE_S

    def _look(self, *, first: bool = False) -> None:
        began = time.monotonic()
        before, free = self._free, free_bytes(self._folder)
        self._free = free - self._unwritten(free)
        was_low, is_low = self.is_low, self._free < (self._enough if self.is_low else self._mark)
        self.is_low = is_low  # first, so that nothing starts behind the freezing
        if is_low != was_low:
            self.since, self._since = now(), began
        if is_low or was_low or first or self._is_undone:
            fell = self._free < min(before, self._mark // 2)
            self._is_undone = not self._apply(is_low, kill=is_low and fell and began - self._since >= KILL_AFTER_S)
        if is_low != was_low:
            self._pause_s = LEAST_PAUSE_S  # at once again: what started in between has to be caught
            self._loop.call_soon_threadsafe(self._on_change, is_low, self._free)
        elif is_low:
            self._pause_s = min(self._pause_s * 2, FROZEN_PAUSE_S)
        else:
            self._pause_s = min(max((self._free - self._mark) / RATE_BYTES_S, LEAST_PAUSE_S), MOST_PAUSE_S)
            if self._free >= self._enough + sum(ballast.size_bytes for ballast in self._ballasts):
                for ballast in self._ballasts:
                    ballast.fill()
        self._pause_s = max(self._pause_s, (time.monotonic() - began) / BUSY_PART)

    def _unwritten(self, free: int) -> int:
        """Bytes of guests that are on the way to the disk. The whole host's, which cost little to ask for, are an upper
        bound; where that is near the mark the sandboxes are asked one by one."""
        if free - (most := _host_unwritten()) >= self._mark * 2:
            return most
        return sum(live.unwritten_bytes() for live in self._sandboxes())

    def _apply(self, is_low: bool, *, kill: bool) -> bool:
        """Whether all sandboxes stand still or go on now, as they should."""
        done = True
        for live in self._sandboxes():
            try:
                if not is_low:
                    live.thaw(FROZEN_FOR)
                    continue
                live.freeze(FROZEN_FOR)
                for execution_id in live.not_frozen() if kill else ():
                    log.error("execution %s of %s writes on while frozen: killed", execution_id, live.sandbox_id)
                    live.kill_group(execution_id)
            except OSError as error:  # it may be ending just now
                done = False
                log.warning("sandbox %s could not be %s: %s", live.sandbox_id, "frozen" if is_low else "thawed", error)
        return done


def _host_unwritten() -> int:
    pages = 0
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith(("nr_dirty ", "nr_writeback ")):
            pages += int(line.split()[1])
    return pages * resource.getpagesize()
