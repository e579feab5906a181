"""Disks that outlive their machines: those of sandboxes that were lost with their host, until they are deleted or their
retention ends.

They are read by the files operations that change nothing: the same agent is started alone on the disk, in a small
machine without executions, and goes again READING_S after the last reader. It counts against the host's capacity like
any other, and at most READERS are up at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bellglass.errors import LimitExceeded, NoCapacity
from bellglass.model import SandboxSpec, TerminationReason
from bellglass.node import creating, inputs, sandboxes, templates
from bellglass.node.admission import Share
from bellglass.node.journal import SandboxRow
from bellglass.node.live import LiveSandbox

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

READING_S = 10.0
READERS = 4
CPUS = 1.0
MEMORY_BYTES = 128 * 2**20
PIDS = 128
log = logging.getLogger("bellglass.sandboxes")


def is_kept(row: SandboxRow) -> bool:
    """Whether its disk stays when its machine is given back: nobody had asked for its end."""
    return row.reason == TerminationReason.NODE_LOST


@dataclass(slots=True)
class _Reader:
    live: LiveSandbox
    users: int = 0
    timer: asyncio.TimerHandle | None = None


class KeptDisks:
    def __init__(self, node: Sandboxes) -> None:
        self._node = node
        self._readers: dict[str, _Reader] = {}
        self._starting = 0

    def count(self, row: SandboxRow) -> None:
        """Against the host's disk."""
        self._node.admission.keep_disk(row.id, int(row.spec["disk_bytes"]))

    def reader(self, sandbox_id: str) -> LiveSandbox | None:
        """The machine that `reading` holds."""
        found = self._readers.get(sandbox_id)
        return found.live if found is not None else None

    @asynccontextmanager
    async def reading(self, sandbox_id: str, generation: int) -> AsyncIterator[None]:
        """While it is entered, `reader` answers a machine on the sandbox's kept disk; nothing for other sandboxes.
        Raises NotFound (unknown, or its template is gone), LimitExceeded, NoCapacity, SandboxFailed."""
        row = self._node.row_table.get(sandbox_id)
        if row is None or row.generation != generation or not row.disk_kept:
            yield
            return
        async with self._node.lock(sandbox_id):
            row = self._node.row(sandbox_id, generation)
            if not row.disk_kept:
                raise sandboxes.gone(row)  # deleted meanwhile
            reader = self._readers.get(sandbox_id) or await self._start(row)
            reader.users += 1
            if reader.timer is not None:
                reader.timer.cancel()
                reader.timer = None
        try:
            yield
        finally:
            reader.users -= 1
            if reader.users == 0:
                reader.timer = asyncio.get_running_loop().call_later(READING_S, self._idle, sandbox_id, reader)

    async def keep(self, row: SandboxRow) -> bool:
        """Give everything back but the disk. False where there is none, or the row was deleted meanwhile: then all is
        to be given back."""
        node = self._node
        async with node.lock(row.id):
            row = node.row_table.get(row.id, row)
            if not is_kept(row) or not await node.driver.keep_disk(row.id):
                return False
            await inputs.remove(node.inputs_folder(row.id))
            row = replace(row, reclaimed=True, disk_kept=True)
            await node.journal.put(row, ("sandbox.reclaimed", {"disk_kept": True}))
            node.row_table[row.id] = row
            self.count(row)
            return True

    async def drop(self, row: SandboxRow) -> None:
        """An ended one is deleted by its owner: its disk goes. The sandbox's lock is held."""
        if not (row.disk_kept or is_kept(row)):
            return
        if row.disk_kept:
            await self._stop(row.id)
            await self._node.driver.reclaim_leftovers(row.id)
            self._node.admission.give_back(row.id)
        row = replace(row, disk_kept=False, reason=str(TerminationReason.USER))
        await self._node.journal.put(row)
        self._node.row_table[row.id] = row

    async def forget(self, row: SandboxRow) -> bool:
        """Drop it because its time is over; False when that has to be tried again."""
        try:
            async with self._node.lock(row.id):
                await self.drop(row)
        except Exception:  # the next round tries again
            log.exception("the disk of sandbox %s could not be given back", row.id)
            return False
        return True

    def recover(self, row: SandboxRow) -> None:
        """After a restart of the node: a reader that an earlier one left goes."""
        self.count(row)
        self._node.spawn(self._without_reader(row.id), f"reclaim:{row.id}")

    async def close(self) -> None:
        """The node stops: no reader outlives it."""
        for sandbox_id in list(self._readers):
            await self._stop(sandbox_id)

    # --- inside -----------------------------------------------------------------------------------------

    async def _start(self, row: SandboxRow) -> _Reader:
        if len(self._readers) + self._starting >= READERS:
            raise LimitExceeded(
                f"the disks of {READERS} ended sandboxes are being read, the most at once",
                hint=f"one is free {READING_S:g} s after its last reader",
            )
        node, spec = self._node, SandboxSpec.from_json(row.spec)
        template = node.templates.find(spec.template, spec.template_digest)
        self._starting += 1
        try:
            share = await self._grant(row)
            small = replace(spec, cpus=share.cpu, memory_bytes=share.memory, pids=share.pids)
            on_its_cpus = replace(row, cpu_ids=share.cpu_ids)
            machine = creating.machine_spec(on_its_cpus, small, template, has_inputs=False, reuse_disk=True)
            live = node.make_live(row, small, await node.driver.create(machine))
            try:
                live.start()
                await creating.agent_hello(live)
            except BaseException:
                await live.close(sandboxes.gone(row))
                await node.driver.keep_disk(row.id)
                raise
        except BaseException:
            self.count(row)  # the disk alone again
            raise
        finally:
            self._starting -= 1
        log.info("the disk of sandbox %s (template %s) can be read", row.id, templates.for_driver(template).name)
        self._readers[row.id] = reader = _Reader(live)
        return reader

    async def _grant(self, row: SandboxRow) -> Share:
        admission = self._node.admission

        def grant() -> Share:
            return admission.grant_reader(row.id, cpus=CPUS, memory_bytes=MEMORY_BYTES, pids=PIDS)

        try:
            return await self._node.pools.make_room(row.id, grant)
        except NoCapacity as error:
            raise NoCapacity(
                f"reading the disk of sandbox {row.id} takes a small machine: {error.message}",
                hint="try again when other sandboxes have ended",
                details=error.details,
            ) from None

    async def _without_reader(self, sandbox_id: str) -> None:
        async with self._node.lock(sandbox_id):
            if sandbox_id not in self._readers and self._node.row_table[sandbox_id].disk_kept:
                await self._node.driver.keep_disk(sandbox_id)

    def _idle(self, sandbox_id: str, reader: _Reader) -> None:
        if reader.users == 0 and self._readers.get(sandbox_id) is reader:
            self._node.spawn(self._stop_if_idle(sandbox_id, reader), f"reclaim:{sandbox_id}")

    async def _stop_if_idle(self, sandbox_id: str, reader: _Reader) -> None:
        async with self._node.lock(sandbox_id):
            if reader.users == 0 and self._readers.get(sandbox_id) is reader:
                await self._stop(sandbox_id)

    async def _stop(self, sandbox_id: str) -> None:
        reader = self._readers.pop(sandbox_id, None)
        if reader is None:
            return
        if reader.timer is not None:
            reader.timer.cancel()
        row = self._node.row_table[sandbox_id]
        await reader.live.close(sandboxes.gone(row))
        await self._node.driver.keep_disk(sandbox_id)
        self.count(row)
