"""When the host's disk becomes low, what sandboxes have changed is written to their disks while there is room.

A sandbox's disk is a sparse file: what its file system has changed in memory (directories, inode tables) needs blocks
of the host when the kernel writes it, up to half a minute later. If somebody else has filled the disk by then, the
write is lost, and ext4 gives up on the disk. So each is synced at once, behind the freezing of the executions, which
change nothing more. Who fills the disk may be faster than that: a reserve is given up for it, a piece at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from bellglass.ballast import Ballast, free_bytes
from bellglass.errors import BellglassError, SandboxGone
from bellglass.node.files.stream import FileStream
from bellglass.node.live import LiveSandbox
from bellglass.wire.guest import FileOp

RESERVE_NAME = "ballast-disks"
RESERVE_BYTES = 8 * 2**20
ROOM_BYTES = 2**20
"""Besides what its files want, for what its file system does: the kernel counts that for nobody."""
AT_ONCE = 32
SYNC_S = 5.0
PAUSE_S = 1.0
TRIES = 30
CLOSE_S = 5.0
"""What a node that ends has for it: half of what its supervisor gives it for all."""
log = logging.getLogger("bellglass.flushing")


class Flushing:
    """`begin` and `end` are called on the loop, as often as the disk becomes low and has room again."""

    def __init__(self, folder: Path, reserve: Ballast, sandboxes: Callable[[], Iterable[LiveSandbox]]) -> None:
        self.reserve = reserve
        self._folder = folder
        self._sandboxes = sandboxes
        self.is_settled = False
        """Nothing is left to be written since the disk became low."""
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._promised = 0
        """Bytes of room for those that are being synced."""

    def begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="flushing")

    def end(self) -> None:
        """There is room: the kernel has its time."""
        self.is_settled = False
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Each is tried once more, at once, as long as there is time: nobody looks after their disks until the next
        node is there."""
        self._closing.set()
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=CLOSE_S)
        self.end()
        if task is not None:
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        waiting, places = list(self._sandboxes()), asyncio.Semaphore(AT_ONCE)
        for number in range(TRIES):
            is_last = number == TRIES - 1 or self._closing.is_set()
            # Most have little: they are not to wait for the one that has filled the disk.
            waiting.sort(key=_unwritten)
            done = await asyncio.gather(*(self._flush(live, places) for live in waiting))
            waiting = [live for live, is_done in zip(waiting, done, strict=True) if not is_done]
            if not waiting:
                self.is_settled = True
                return
            if is_last:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._closing.wait()
        log.error("what these have changed is not on their disks: %s", ", ".join(live.sandbox_id for live in waiting))

    async def _flush(self, live: LiveSandbox, places: asyncio.Semaphore) -> bool:
        async with places:
            needed = _unwritten(live) + ROOM_BYTES
            self._promised += needed
            try:
                return await self._make_room() and await self._sync(live)
            except OSError as error:  # the next round tries again
                log.warning("sandbox %s: its disk could not be synced: %s", live.sandbox_id, error)
                return False
            finally:
                self._promised -= needed

    async def _make_room(self) -> bool:
        """For all that is promised. Nothing is given where that would not do."""
        while (free := free_bytes(self._folder)) < self._promised:
            if free + self.reserve.held_bytes() < self._promised:
                return False
            if not await asyncio.to_thread(self.reserve.give):
                return False
        return True

    async def _sync(self, live: LiveSandbox) -> bool:
        try:
            async with asyncio.timeout(SYNC_S), FileStream(live, FileOp.SYNC, "/", user="root", base=None) as operation:
                await operation.result()
        except SandboxGone:
            return True
        except (BellglassError, TimeoutError) as error:
            log.warning("sandbox %s: its disk could not be synced: %s", live.sandbox_id, error)
            return False
        return True


def _unwritten(live: LiveSandbox) -> int:
    """As far as it can be told: a node that is out of descriptors goes on all the same."""
    try:
        return live.unwritten_bytes()
    except OSError:
        return 0
