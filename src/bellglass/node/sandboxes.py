"""Every sandbox of this node, from its intent to its last reclaimed folder.

A change goes intent (journal), act (driver), confirm (journal), under the sandbox's own lock: double deletes, a delete
during a create and an end by itself queue up and find things done. A create or end that was begun is carried through
whatever becomes of its caller. What the journal knows and memory doesn't is settled by recover().
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

from bellglass.errors import AgentLost, Conflict, NotFound, SandboxFailed, SandboxGone
from bellglass.model import SandboxSpec, TerminationReason, format_time, now
from bellglass.node import inputs, templates
from bellglass.node.admission import Admission
from bellglass.node.drivers.base import Driver, Handle, MachineSpec
from bellglass.node.executions.records import Records
from bellglass.node.executions.registry import Limits
from bellglass.node.journal import Journal, SandboxRow
from bellglass.node.live import LiveSandbox
from bellglass.node.templates import Templates

HELLO_DEADLINE_S = 20.0
RECLAIM_RETRIES_S = (1.0, 5.0, 30.0, 60.0, 300.0)
STOP_S = 15.0
DELETED_KEPT_S = 600.0
log = logging.getLogger("bellglass.sandboxes")


class Sandboxes:
    """`executions_dir` and `inputs_dir` have one folder per sandbox."""

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
    ) -> None:
        self.driver = driver
        self.records = records
        self.admission = admission
        self._journal = journal
        self._templates = templates
        self._executions_dir = executions_dir
        self._inputs_dir = inputs_dir
        self._limits = limits
        self._retention_s = retention_s
        self._rows: dict[str, SandboxRow] = {}
        self._live: dict[str, LiveSandbox] = {}
        self._ending: dict[str, LiveSandbox] = {}
        """Their end was decided, but their processes are not known to be dead."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    # --- looking ----------------------------------------------------------------------------------------

    def rows(self) -> list[SandboxRow]:
        return list(self._rows.values())

    def live(self, sandbox_id: str, generation: int) -> LiveSandbox:
        """Raises NotFound, SandboxGone, or Conflict for one that is just being made or ended."""
        live = self._live.get(sandbox_id)
        if live is not None and live.generation == generation:
            return live
        row = self.row(sandbox_id, generation)
        if row.state in ("ending", "ended"):
            raise gone(row)
        raise Conflict(f"sandbox {sandbox_id} is still {row.state}", hint="wait until it runs")

    def row(self, sandbox_id: str, generation: int) -> SandboxRow:
        """Raises NotFound."""
        row = self._rows.get(sandbox_id)
        if row is None or row.generation != generation:
            raise NotFound(f"no sandbox {sandbox_id!r}", details={"field": "id"})
        return row

    def log_folder(self, sandbox_id: str) -> Path:
        return self._executions_dir / sandbox_id

    # --- create -----------------------------------------------------------------------------------------

    async def create(
        self, sandbox_id: str, generation: int, project_id: str, spec: SandboxSpec, files: dict[str, bytes]
    ) -> SandboxRow:
        """Returns when the agent has said HELLO. Repeating it answers the same sandbox. Raises NotFound (template),
        NoCapacity, SandboxFailed, SandboxGone (it ended), Conflict (another generation)."""
        return await self._carried_through(
            self._create(sandbox_id, generation, project_id, spec, files), f"create:{sandbox_id}"
        )

    async def _create(
        self, sandbox_id: str, generation: int, project_id: str, spec: SandboxSpec, files: dict[str, bytes]
    ) -> SandboxRow:
        async with self._lock(sandbox_id):
            if (row := self._rows.get(sandbox_id)) is not None:
                if row.generation != generation:
                    raise Conflict(f"sandbox {sandbox_id} has generation {row.generation}, not {generation}")
                if row.state != "running":
                    raise gone(row)
                return row
            template = self._templates.find(spec.template, spec.template_digest)
            share = self.admission.grant(sandbox_id, spec)
            row = SandboxRow(
                cpu_ids=share.cpu_ids,
                id=sandbox_id,
                generation=generation,
                project_id=project_id,
                spec=spec.to_json(),
                driver=self.driver.name,
                state="creating",
            )
            self._rows[sandbox_id] = row
            live: LiveSandbox | None = None
            try:
                await self._journal.put(row)
                if files:
                    await asyncio.to_thread(inputs.write, self._inputs_dir / sandbox_id, files)
                handle = await self.driver.create(
                    MachineSpec(
                        sandbox_id=sandbox_id,
                        generation=generation,
                        template=templates.for_driver(template),
                        cpus=spec.cpus,
                        cpu_ids=share.cpu_ids,
                        memory_bytes=spec.memory_bytes,
                        disk_bytes=spec.disk_bytes,
                        inodes=spec.inodes,
                        pids=spec.pids,
                        has_inputs=bool(files),
                    )
                )
                live = self._make_live(row, spec, handle, templates.shell_of(template))
                live.start()
                await self._first_hello(live)
                return await self._confirm(row, live, spec)
            except BaseException as error:
                await self._undo_create(row, live, error)
                raise

    async def _first_hello(self, live: LiveSandbox) -> None:
        try:
            await live.session.wait_link(asyncio.get_running_loop().time() + HELLO_DEADLINE_S)
        except AgentLost as error:
            raise SandboxFailed(
                f"the agent of {live.sandbox_id} did not answer within {HELLO_DEADLINE_S:g} s",
                hint="see the node's log",
            ) from error

    async def _confirm(self, row: SandboxRow, live: LiveSandbox, spec: SandboxSpec) -> SandboxRow:
        expires = time.time() + spec.lifetime_s
        row = replace(
            row,
            state="running",
            runtime=live.handle.runtime,
            runtime_version=live.handle.runtime_version,
            started_at=now(),
            expires_at_unix=expires,
            idle_timeout_s=spec.idle_timeout_s,
            driver_state=live.handle.state(),
        )
        event = {
            "started_at": row.started_at,
            "expires_at": expires_at(row),
            "runtime": row.runtime,
            "runtime_version": row.runtime_version,
        }
        await self._journal.put(row, ("sandbox.started", event))
        self._rows[row.id] = row
        self._live[row.id] = live
        live.set_clocks(expires_at_unix=expires, idle_timeout_s=spec.idle_timeout_s)
        return row

    async def _undo_create(self, row: SandboxRow, live: LiveSandbox | None, error: BaseException) -> None:
        """Nothing of it is left, the journal included: the caller has the error. Where that fails, it is an ended one
        that is still to be reclaimed."""
        log.warning("sandbox %s was not created: %s", row.id, error)
        self._live.pop(row.id, None)
        try:
            if live is not None:
                await live.close(SandboxFailed(f"sandbox {row.id} was not created"))
                await live.handle.destroy()
                await live.handle.reclaim()
            await asyncio.to_thread(inputs.remove, self._inputs_dir / row.id)
            await self._forget_logs(row.id)
        except Exception:
            log.exception("undoing the create of sandbox %s failed", row.id)
            row = row.ending(str(TerminationReason.FAILED), str(error))
            self._spawn(self._settle(row, live.handle if live is not None else None), f"reclaim:{row.id}")
            return
        self.admission.give_back(row.id)
        self._rows.pop(row.id, None)
        self._locks.pop(row.id, None)
        await self._journal.forget([row.id])

    def _make_live(self, row: SandboxRow, spec: SandboxSpec, handle: Handle, shell: str) -> LiveSandbox:
        return LiveSandbox(
            sandbox_id=row.id,
            generation=row.generation,
            spec=spec,
            shell=shell,
            handle=handle,
            records=self.records,
            folder=self.log_folder(row.id),
            limits=self._limits,
            on_end=self._end_soon,
        )

    # --- change and end ---------------------------------------------------------------------------------

    async def update(
        self, live: LiveSandbox, *, lifetime_s: float | None, idle_timeout_s: float | None, clear_idle: bool
    ) -> SandboxRow:
        """New clocks, counted from now."""
        async with self._lock(live.sandbox_id):
            row = self._rows[live.sandbox_id]
            if row.state != "running":
                raise gone(row)
            if lifetime_s is not None:
                row = replace(row, expires_at_unix=time.time() + lifetime_s)
            if clear_idle or idle_timeout_s is not None:
                row = replace(row, idle_timeout_s=None if clear_idle else idle_timeout_s)
            await self._journal.put(row)
            self._rows[row.id] = row
            assert row.expires_at_unix is not None
            live.set_clocks(expires_at_unix=row.expires_at_unix, idle_timeout_s=row.idle_timeout_s)
            return row

    async def delete(self, sandbox_id: str, generation: int) -> str | None:
        """When it ended (RFC 3339), or None for one that is unknown. Returns when every process is dead."""
        return await self._carried_through(self._delete(sandbox_id, generation), f"delete:{sandbox_id}")

    async def _delete(self, sandbox_id: str, generation: int) -> str | None:
        async with self._lock(sandbox_id):
            row = self._rows.get(sandbox_id)
            if row is None or row.generation != generation:
                return None
            if row.state == "running":
                row = await self._end(row, TerminationReason.USER, None)
            elif row.state == "ending":
                await self._die(row)  # an earlier end did not get through
            await self._forget_logs(sandbox_id)
            return row.ended_at

    def _end_soon(self, live: LiveSandbox, reason: TerminationReason, message: str | None) -> None:
        if not self._stopping and self._live.get(live.sandbox_id) is live:
            self._spawn(self._end_by_itself(live, reason, message), f"end:{live.sandbox_id}")

    async def _end_by_itself(self, live: LiveSandbox, reason: TerminationReason, message: str | None) -> None:
        async with self._lock(live.sandbox_id):
            row = self._rows.get(live.sandbox_id)
            if row is not None and row.state == "running" and self._live.get(live.sandbox_id) is live:
                log.info("sandbox %s ends: %s %s", row.id, reason, message or "")
                await self._end(row, reason, message)

    async def _end(self, row: SandboxRow, reason: TerminationReason, message: str | None) -> SandboxRow:
        """Intent, death; the confirmation and the reclaiming go on behind the answer."""
        row = row.ending(str(reason), message)
        self._rows[row.id] = row
        self._ending[row.id] = self._live.pop(row.id)
        await self._journal.put(row)
        await self._die(row)
        return row

    async def _die(self, row: SandboxRow) -> None:
        """Every process of an `ending` one is dead when this returns. A failure leaves it `ending`: the next delete or
        the next start of the node tries again."""
        live = self._ending.get(row.id)
        if live is None:
            return  # dead already, being settled
        await live.handle.destroy()
        await live.close(gone(row))
        del self._ending[row.id]
        self._spawn(self._settle(row, live.handle), f"reclaim:{row.id}")

    async def _settle(self, row: SandboxRow, handle: Handle | None) -> None:
        """An `ending` one whose processes are dead becomes `ended`, then `reclaimed`."""
        row = replace(row, state="ended", driver_state=None)
        ended = {"reason": row.reason, "ended_at": row.ended_at, "message": row.message}
        await self._journal.put(row, ("sandbox.ended", ended))
        self._rows[row.id] = row
        for pause_s in RECLAIM_RETRIES_S:
            try:
                await self._reclaim(row, handle)
                return
            except Exception:  # what is left is tried again, at last by the next start of the node
                log.exception("reclaiming sandbox %s failed; again in %g s", row.id, pause_s)
                await asyncio.sleep(pause_s)

    async def _reclaim(self, row: SandboxRow, handle: Handle | None) -> None:
        if handle is not None:
            await handle.reclaim()
        else:
            await self.driver.reclaim_leftovers(row.id)
        await asyncio.to_thread(inputs.remove, self._inputs_dir / row.id)
        self.admission.give_back(row.id)
        if row.reason == TerminationReason.USER:
            await self._forget_logs(row.id)
        row = replace(row, reclaimed=True)
        await self._journal.put(row, ("sandbox.reclaimed", {}))
        self._rows[row.id] = row

    async def wait_reclaimed(self) -> None:
        """Until nothing that has ended is still being given back."""
        while tasks := [task for task in self._tasks if task.get_name().startswith(("end:", "reclaim:", "delete:"))]:
            await asyncio.wait(tasks)

    # --- start and stop of the node ---------------------------------------------------------------------

    async def recover(self) -> None:
        """Settle what an earlier node left: running ones go on, half-made and half-ended ones are finished."""
        await self.forget_old(await self._journal.sandboxes())
        for row in list(self._rows.values()):
            try:
                await self._recover(row)
            except Exception:  # one broken sandbox must not keep the others from being served
                log.exception("sandbox %s could not be recovered", row.id)

    async def _recover(self, row: SandboxRow) -> None:
        if row.state == "ended":
            if not row.reclaimed:
                self._spawn(self._settle(row, None), f"reclaim:{row.id}")
            return
        handle = None
        if row.driver_state is not None:
            handle = await self.driver.recover(row.id, row.driver_state)
        if row.state == "running" and handle is not None:
            await self._take_over(row, handle)
            return
        if row.state != "ending":
            reason, message = TerminationReason.NODE_LOST, "its machine was gone when the node started"
            if row.state == "creating":
                reason, message = TerminationReason.FAILED, "the node stopped while it was being created"
            row = row.ending(str(reason), message)
        if handle is not None:
            await handle.destroy()
        self._lose_executions(row)
        self._rows[row.id] = row
        self._spawn(self._settle(row, handle), f"reclaim:{row.id}")

    async def _take_over(self, row: SandboxRow, handle: Handle) -> None:
        spec = SandboxSpec.from_json(row.spec)
        self.admission.grant(row.id, spec, cpu_ids=row.cpu_ids)
        template = self._templates.find(spec.template, spec.template_digest)
        live = self._make_live(row, spec, handle, templates.shell_of(template))
        live.executions.adopt()
        self._live[row.id] = live
        live.start()
        assert row.expires_at_unix is not None
        live.set_clocks(expires_at_unix=row.expires_at_unix, idle_timeout_s=row.idle_timeout_s)
        log.info("sandbox %s goes on", row.id)

    def _lose_executions(self, row: SandboxRow) -> None:
        for stored in self.records.running(row.id):
            self.records.finish(row.id, stored.id, stored.record | {"state": "lost", "ended_at": row.ended_at})

    async def suspend(self) -> None:
        """The node stops; sandboxes go on. Creates and ends under way are finished first, within STOP_S."""
        self._stopping = True
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=STOP_S)
        for task in list(self._tasks):
            task.cancel()  # the journal has its intent: the next start of the node finishes or undoes it
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        for live in list(self._live.values()):
            await live.suspend()

    async def forget_old(self, rows: list[SandboxRow] | None = None) -> None:
        """Drop ended ones after the retention, with their logs; called at start and now and then."""
        if rows is not None:
            self._rows = {row.id: row for row in rows}
        old = [row.id for row in self.rows() if self._is_old(row)]
        for sandbox_id in old:
            await self._forget_logs(sandbox_id)
            del self._rows[sandbox_id]
            self._locks.pop(sandbox_id, None)
        if old:
            await self._journal.forget(old)

    # --- small things -----------------------------------------------------------------------------------

    def _is_old(self, row: SandboxRow) -> bool:
        """One that its owner deleted is kept a little while, for repeated deletes; the others for the retention."""
        kept_s = DELETED_KEPT_S if row.reason == TerminationReason.USER else self._retention_s
        return row.reclaimed and row.ended_at_unix is not None and row.ended_at_unix < time.time() - kept_s

    def _lock(self, sandbox_id: str) -> asyncio.Lock:
        return self._locks.setdefault(sandbox_id, asyncio.Lock())

    async def _forget_logs(self, sandbox_id: str) -> None:
        self.records.forget_sandbox(sandbox_id)
        await asyncio.to_thread(shutil.rmtree, self.log_folder(sandbox_id), ignore_errors=True)

    async def _carried_through(self, work: Coroutine[Any, Any, Any], name: str) -> Any:
        """Run to the end even when the caller is cancelled."""
        return await asyncio.shield(self._spawn(work, name))

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

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
