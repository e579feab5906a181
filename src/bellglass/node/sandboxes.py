"""Every sandbox of this node: the rows of the journal, the ones that run, and a lock for each.

A change goes intent (journal), act (driver), confirm (journal), under the sandbox's own lock: double deletes, a delete
during a create and an end by itself queue up and find things done. A change that was begun is carried through whatever
becomes of its caller. The changes themselves: creating.py, ending.py, recovery.py.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from bellglass import faultpoints, ids
from bellglass.errors import Conflict, NotFound, SandboxGone
from bellglass.model import SandboxSpec, TerminationReason, format_time
from bellglass.node import creating, ending, kept
from bellglass.node.admission import Admission
from bellglass.node.drivers.base import Driver, Handle
from bellglass.node.executions.records import Records
from bellglass.node.executions.registry import Limits
from bellglass.node.journal import Journal, SandboxRow
from bellglass.node.live import EndCall, LiveSandbox
from bellglass.node.metrics.sampler import Sampler
from bellglass.node.net.egress import Egress
from bellglass.node.net.identity import Identities
from bellglass.node.net.presets import Presets
from bellglass.node.pools.pools import Pools
from bellglass.node.templates import Templates

STOP_S = 15.0
EVENTS_KEPT = 100_000
"""Acknowledged ones, for a server whose database was restored: at most so many, and no longer than the retention."""
DELETED_KEPT_S = 120.0
DISK_LOW = "disk_low"
"""The fact in the journal: `yes` or `no`, as its events were told last."""
log = logging.getLogger("bellglass.sandboxes")


class Sandboxes:
    """`executions_dir` and `inputs_dir` have one folder per sandbox. The tables are for the modules named above."""

    def __init__(
        self,
        *,
        driver: Driver,
        journal: Journal,
        records: Records,
        templates: Templates,
        admission: Admission,
        executions_dir: Path,
        inputs_dir: Path,
        limits: Limits,
        retention_s: float,
        pool_refills: int,
        presets: Presets,
        metrics_interval_s: float,
    ) -> None:
        self.driver = driver
        self.journal = journal
        self.records = records
        self.templates = templates
        self.admission = admission
        self.presets = presets
        self.egress: Egress | None = None
        self.identities: Identities | None = None
        """None where the driver's machines have no network."""
        self.metrics = Sampler(self.running, self.log_folder, metrics_interval_s)
        self.row_table: dict[str, SandboxRow] = {}
        self.live_table: dict[str, LiveSandbox] = {}
        self.dying_table: dict[str, LiveSandbox] = {}
        """Their end was decided, but their processes are not known to be dead."""
        self.kept = kept.KeptDisks(self)
        self.stopping = False
        self._executions_dir = executions_dir
        self._inputs_dir = inputs_dir
        self._limits = limits
        self._retention_s = retention_s
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Each for as long as somebody holds or awaits it: ids of refused creates come without end."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.pools = Pools(self, pool_refills)

    # --- looking ----------------------------------------------------------------------------------------

    def rows(self) -> list[SandboxRow]:
        return list(self.row_table.values())

    def knows(self, sandbox_id: str) -> bool:
        return sandbox_id in self.row_table

    def running(self) -> list[LiveSandbox]:
        return list(self.live_table.values())

    def row(self, sandbox_id: str, generation: int) -> SandboxRow:
        """Raises NotFound."""
        row = self.row_table.get(sandbox_id)
        if row is None or row.generation != generation:
            raise NotFound(f"no sandbox {sandbox_id!r}", details={"field": "id"})
        return row

    def live(self, sandbox_id: str, generation: int) -> LiveSandbox:
        """Raises NotFound, SandboxGone, or Conflict for one that is just being made."""
        live = self.live_table.get(sandbox_id)
        if live is not None and live.generation == generation:
            if self.row_table[sandbox_id].quarantined_at_unix is not None:
                raise Conflict(f"sandbox {sandbox_id} is in quarantine", hint="`bellglass quarantine ls` shows it")
            return live
        row = self.row(sandbox_id, generation)
        if row.state in ("ending", "ended"):
            raise gone(row)
        if row.state == "running":
            why = f"sandbox {sandbox_id} could not be taken over when its node started"
            raise Conflict(why, hint="the node's log has the reason; delete it, or start the node again")
        raise Conflict(f"sandbox {sandbox_id} is still {row.state}", hint="wait until it runs")

    def readable(self, sandbox_id: str, generation: int) -> LiveSandbox:
        """`live`, or for an ended one that has left its disk the machine that `kept.reading` holds."""
        row = self.row(sandbox_id, generation)
        reader = self.kept.reader(sandbox_id) if row.disk_kept else None
        return reader or self.live(sandbox_id, generation)

    def log_folder(self, sandbox_id: str) -> Path:
        return self._executions_dir / sandbox_id

    def folders(self) -> set[str]:
        """The ids of which there are folders."""
        found = [path.name for parent in (self._executions_dir, self._inputs_dir) for path in parent.iterdir()]
        return {name for name in found if ids.SANDBOX_ID.fullmatch(name)}

    def inputs_folder(self, sandbox_id: str) -> Path:
        return self._inputs_dir / sandbox_id

    # --- changing ---------------------------------------------------------------------------------------

    async def create(
        self,
        sandbox_id: str,
        generation: int,
        project_id: str,
        spec: SandboxSpec,
        files: dict[str, bytes],
        about: dict[str, Any] | None = None,
    ) -> SandboxRow:
        """Returns when the agent has said HELLO. Repeating it answers the same sandbox. Raises NotFound (template),
        NoCapacity, SandboxFailed, SandboxGone (it ended), Conflict (another generation)."""
        work = creating.create(self, sandbox_id, generation, project_id, spec, files, about or {})
        return await asyncio.shield(self.spawn(work, f"create:{sandbox_id}"))

    async def delete(self, sandbox_id: str, generation: int) -> str | None:
        """When it ended (RFC 3339), or None for one that is unknown. Returns when every process is dead."""
        work = ending.delete(self, sandbox_id, generation)
        return await asyncio.shield(self.spawn(work, f"delete:{sandbox_id}"))

    async def update(
        self,
        live: LiveSandbox,
        *,
        lifetime_s: float | None = None,
        keep_for_s: float | None = None,
        expires_at_unix: float | None = None,
        idle_timeout_s: float | None = None,
        clear_idle: bool = False,
    ) -> SandboxRow:
        """New clocks: a lifetime counts from now, `keep_for_s` too but never shortens, `expires_at_unix` may have
        passed."""
        async with self.lock(live.sandbox_id):
            row = self.row_table[live.sandbox_id]
            if row.state != "running":
                raise gone(row)
            if lifetime_s is not None:
                row = replace(row, expires_at_unix=time.time() + lifetime_s)
            elif keep_for_s is not None:
                row = replace(row, expires_at_unix=max(row.expires_at_unix or 0.0, time.time() + keep_for_s))
            elif expires_at_unix is not None:
                row = replace(row, expires_at_unix=expires_at_unix)
            if clear_idle or idle_timeout_s is not None:
                row = replace(row, idle_timeout_s=None if clear_idle else idle_timeout_s)
            await self.journal.put(row)
            faultpoints.reach("node.update.journaled")
            self.row_table[row.id] = row
            assert row.expires_at_unix is not None
            live.set_clocks(expires_at_unix=row.expires_at_unix, idle_timeout_s=row.idle_timeout_s)
            return row

    def end_soon(self, live: LiveSandbox, reason: TerminationReason, message: str | None) -> None:
        """Something noticed that it has to end; noticed twice is ended once."""
        if not self.stopping and self.live_table.get(live.sandbox_id) is live:
            self.spawn(ending.end_by_itself(self, live, reason, message), f"end:{live.sandbox_id}")

    def disk_changed(self, is_low: bool, free_bytes: int) -> None:
        """An event of each sandbox that runs: its executions stand still, or go on."""
        kind = "sandbox.frozen" if is_low else "sandbox.thawed"
        log.log(logging.WARNING if is_low else logging.INFO, "%s: %d bytes of disk are free", kind, free_bytes)
        if not self.stopping:
            self.spawn(self._note_disk(kind, is_low), f"disk:{kind}")

    async def wait_reclaimed(self) -> None:
        """Until nothing that has ended is still being given back."""
        while tasks := self.tasks("end:", "reclaim:", "delete:", "pool:drain:"):
            await asyncio.wait(tasks)

    def tasks(self, *prefixes: str) -> list[asyncio.Task[Any]]:
        """Changes under way by the beginning of their names."""
        return [task for task in self._tasks if task.get_name().startswith(prefixes)]

    async def suspend(self) -> None:
        """The node stops; sandboxes go on. Creates and ends under way are finished first, within STOP_S."""
        self.stopping = True
        await self.pools.suspend()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=STOP_S)
        for task in list(self._tasks):
            task.cancel()  # the journal has its intent: the next start of the node finishes or undoes it
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        for live in list(self.live_table.values()):
            await live.suspend()
        await self.pools.close()
        await self.kept.close()

    async def forget_old(self) -> None:
        """Drop what ended long ago, with its logs; called at start and now and then."""
        rows = [row for row in self.rows() if self._is_old(row)]
        old = [row.id for row in rows if not row.disk_kept or await self.kept.forget(row)]
        for sandbox_id in old:
            await self.forget_logs(sandbox_id)
            del self.row_table[sandbox_id]
        if old:
            await self.journal.forget(old)
        kept_since = datetime.fromtimestamp(time.time() - self._retention_s, UTC)
        await self.journal.forget_events(format_time(kept_since), EVENTS_KEPT)

    # --- for the changes --------------------------------------------------------------------------------

    def lock(self, sandbox_id: str) -> asyncio.Lock:
        lock = self._locks.get(sandbox_id)
        if lock is None:
            lock = self._locks[sandbox_id] = asyncio.Lock()
        return lock

    def make_live(
        self, row: SandboxRow, spec: SandboxSpec, handle: Handle, *, on_end: EndCall | None = None
    ) -> LiveSandbox:
        return LiveSandbox(
            sandbox_id=row.id,
            generation=row.generation,
            spec=spec,
            shell=row.shell,
            handle=handle,
            records=self.records,
            folder=self.log_folder(row.id),
            limits=self._limits,
            on_end=on_end or self.end_soon,
        )

    async def forget_logs(self, sandbox_id: str) -> None:
        self.records.forget_sandbox(sandbox_id)
        await asyncio.to_thread(self._remove_logs, sandbox_id)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A task that the node's stop waits for."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    # --- inside -----------------------------------------------------------------------------------------

    def _remove_logs(self, sandbox_id: str) -> None:
        self.metrics.release(sandbox_id)
        shutil.rmtree(self.log_folder(sandbox_id), ignore_errors=True)

    async def _note_disk(self, kind: str, is_low: bool) -> None:
        await self.journal.meta(DISK_LOW, "yes" if is_low else "no")
        if events := [(live.sandbox_id, live.generation, kind, {"reason": "disk"}) for live in self.running()]:
            await self.journal.note(events)

    def _is_old(self, row: SandboxRow) -> bool:
        """One that its owner deleted is kept a little while, for repeated deletes; the others for the retention."""
        kept_s = DELETED_KEPT_S if row.reason == TerminationReason.USER else self._retention_s
        return row.reclaimed and row.ended_at_unix is not None and row.ended_at_unix < time.time() - kept_s

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not task.get_name().startswith(("create:", "delete:")):  # their callers have the error
            log.error("%s failed", task.get_name(), exc_info=error)


def gone(row: SandboxRow) -> SandboxGone:
    return SandboxGone(
        f"sandbox {row.id} has ended ({row.reason})",
        hint="create a new one",
        details={"sandbox_id": row.id, "reason": row.reason, "ended_at": row.ended_at},
    )


def expires_at(row: SandboxRow) -> str | None:
    if row.expires_at_unix is None:
        return None
    return format_time(datetime.fromtimestamp(row.expires_at_unix, UTC))
