"""One context: its host, the queue of its runs, and what the end of its kernel is called."""

from __future__ import annotations

import asyncio
import signal as signals
import time
from dataclasses import dataclass, replace
from typing import Any

from bellglass import faultpoints, ids
from bellglass.errors import BellglassError, Conflict, KernelDied, LimitExceeded, NotFound, NotSupported
from bellglass.node.contexts import host
from bellglass.node.contexts.host import Surroundings
from bellglass.node.contexts.lines import HostBroken
from bellglass.node.contexts.reading import Reading
from bellglass.node.contexts.run import DID_NOT_STOP, ContextRun
from bellglass.node.contexts.sandbox import ContextSandbox
from bellglass.node.contexts.store import RUNS_KEPT, StoredContext, StoredRun
from bellglass.node.executions.record import rfc3339
from bellglass.node.executions.registry import View
from bellglass.node.executions.run import Run

MOST_WAITING = 64
READY_S = 60.0
_SAID = {
    "exited": "its kernel exited",
    "signal": "its kernel was killed by {signal}",
    "oom": "its kernel was killed: out of memory",
    "unresponsive": DID_NOT_STOP,
    "protocol": "its kernel host broke its protocol, and was killed",
    "restarted": "the context was restarted",
    "deleted": "the context was deleted",
}


@dataclass(frozen=True, slots=True)
class Code:
    """What is to be run, under the id `run_id`; `digest` is of all of it."""

    run_id: str
    code: str
    env: dict[str, str]
    timeout_s: float | None
    digest: str


class Context:
    """Runs go one after the other, in the order in which they came."""

    def __init__(self, live: ContextSandbox, row: StoredContext) -> None:
        self.live = live
        self.row = row
        self.gone = asyncio.Event()
        """It was deleted, or its sandbox ended meanwhile."""
        self.ending = False
        """A task deletes it."""
        self.creators = 0
        """Calls that make it and were not answered yet."""
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._starting = asyncio.Lock()
        self._runs: dict[str, ContextRun] = {}
        self._current: ContextRun | None = None
        self._adopted: ContextRun | None = None
        """Of an earlier life of the node, which does not hold the turn."""
        self._killed: dict[str, str] = {}
        """Hosts that were ended from here, by their executions, and why. A few of the newest."""

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def busy(self) -> bool:
        return self._current is not None

    def record(self) -> dict[str, Any]:
        running = self.row.execution_id in self.live.executions.running
        return {
            "id": self.id,
            "sandbox_id": self.live.sandbox_id,
            "language": self.row.language,
            "cwd": self.row.cwd,
            "user": self.row.user,
            "state": "busy" if self.busy else "ready" if running else "stopped",
            "execution_id": self.row.execution_id,
            "created_at": rfc3339(self.row.created_at),
        }

    def adopt(self) -> None:
        """After a restart of the node: the run that was under way goes on."""
        if not self.row.runs or self.row.runs[-1].execution_id not in self.live.executions.running:
            return
        run = ContextRun(self, self.row.runs[-1], adopted=True)
        self._runs[run.row.id] = self._current = self._adopted = run
        run.adopt()

    # --- runs -------------------------------------------------------------------------------------------

    async def begin(self, code: Code, around: Surroundings) -> ContextRun:
        """Wait for the turn and begin; the same id finds the run that it began. Raises Conflict (the id is of other
        code, or of a run whose output is gone), LimitExceeded, NotFound (deleted meanwhile) and what starting the host
        raises."""
        if (known := self._known(code)) is not None:
            return known
        if self._waiting >= MOST_WAITING:
            raise LimitExceeded(
                f"{self._waiting} runs wait for context {self.id}", hint="runs of one context go one after the other"
            )
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            if self._adopted is not None:
                await self._adopted.ended.wait()
            if (known := self._known(code)) is not None:  # sent twice, and waited twice
                self._turn.release()
                return known
            return self._begin(code, await self._host(around))
        except BaseException:
            self._turn.release()
            raise

    def run_ended(self, run: ContextRun) -> None:
        if self._current is run:
            self._current = None
            if self._adopted is run:
                self._adopted = None
            else:
                self._turn.release()

    def is_current(self, run: ContextRun) -> bool:
        """It is under way."""
        return self._current is run

    def interrupt(self) -> bool:
        """Whether there was a run to be interrupted."""
        if self._current is None:
            return False
        self._current.interrupt()
        return True

    def _begin(self, code: Code, held: Run) -> ContextRun:
        now = time.time()
        deadline_at = None if code.timeout_s is None else now + code.timeout_s
        before = self.row.runs[-1].execution_id if self.row.runs else held.spec.id
        row = StoredRun(
            code.run_id, code.digest, held.spec.id, held.log.total_bytes, now, deadline_at, before != held.spec.id
        )
        self._store(replace(self.row, runs=[*self.row.runs, row][-RUNS_KEPT:]))
        faultpoints.reach("node.context.run_stored")
        run = ContextRun(self, row)
        self._runs[run.row.id] = self._current = run
        for old in [run_id for run_id in self._runs if not any(kept.id == run_id for kept in self.row.runs)]:
            del self._runs[old]
        run.begin(code.code, code.env)
        return run

    def _known(self, code: Code) -> ContextRun | None:
        row = next((row for row in self.row.runs if row.id == code.run_id), None)
        if row is None:
            return None
        if row.digest != code.digest:
            raise Conflict(
                f"run {row.id} exists and is other code", hint="make a new id for each run", details={"field": "id"}
            )
        run = self._runs.get(row.id)
        if run is None:
            # Of an earlier life of the node, and over: what it wrote is read again.
            run = self._runs[row.id] = ContextRun(self, replace(row, deadline_at=None))
        return run

    # --- the host ---------------------------------------------------------------------------------------

    async def start(self, around: Surroundings) -> None:
        """Until its kernel is ready. Raises KernelDied, NotSupported (no host in the template), what START raises."""
        held = await self._host(around)
        view = self.live.executions.view(held.spec.id)
        reading = Reading(view, 0, self.live.session.budget)
        try:
            async with asyncio.timeout(READY_S):
                while True:
                    events = await reading.batch(READY_S)
                    if events is None:
                        raise self.host_gone(view, silent=True)[1]
                    if reading.skipped_bytes or any(event.kind in ("ready", "started") for event in events):
                        faultpoints.reach("node.context.host_ready")
                        return
                    for event in events:
                        if event.kind == "died":
                            raise self.died(**event.value)
        except HostBroken as broken:
            raise await self.broken(held.spec.id, str(broken)) from None
        except TimeoutError:
            self.kill_host("unresponsive")
            raise self.died("unresponsive", f"its kernel was not ready after {READY_S:g} s") from None

    async def restart(self, around: Surroundings) -> None:
        """End the kernel and start another one under the same id. Raises as `start` does."""
        await self.end_host("restarted")
        await self.start(around)
        faultpoints.reach("node.context.restarted")

    def confirm(self) -> None:
        """It is made: from here on it outlives the call that made it."""
        if not self.row.ready:
            self._store(replace(self.row, ready=True))
            faultpoints.reach("node.context.confirmed")

    def kill_host(self, why: str) -> None:
        held = self.live.executions.running.get(self.row.execution_id or "")
        if held is not None and held.spec.id not in self._killed:
            while len(self._killed) >= RUNS_KEPT:
                del self._killed[next(iter(self._killed))]
            self._killed[held.spec.id] = why
            held.kill()
            faultpoints.reach("node.context.host_killed")

    async def end_host(self, why: str) -> None:
        """Until it is dead."""
        held = self.live.executions.running.get(self.row.execution_id or "")
        if held is not None:
            self.kill_host(why)
            await held.ended.wait()
            faultpoints.reach("node.context.host_dead")

    def mark_deleting(self) -> None:
        self._store(replace(self.row, deleting=True))
        faultpoints.reach("node.context.deleting")

    async def end(self) -> None:
        """For good, until its host is dead: behind `mark_deleting` no other one is started."""
        await self.end_host("deleted")
        async with self._starting:
            await self.end_host("deleted")

    async def _host(self, around: Surroundings) -> Run:
        """The host that runs, or a new one."""
        async with self._starting:
            held = self.live.executions.running.get(self.row.execution_id or "")
            if held is not None and held.spec.id in self._killed:
                await held.ended.wait()
                held = None
            if self.row.deleting:
                raise NotFound(f"no context {self.id!r} in this sandbox", details={"field": "id"})
            if held is not None:
                return held
            return await self._start_host(around)

    async def _start_host(self, around: Surroundings) -> Run:
        execution_id = ids.new_ulid()
        spec = host.execution(execution_id, self.id, self.row.language, self.row.cwd, around)
        # Known before it is there: whatever happens, it is found again.
        self._store(replace(self.row, execution_id=execution_id))
        faultpoints.reach("node.context.host_stored")
        run, _ = self.live.executions.create(spec, before_new=around.check_disk)
        assert run is not None, "the id is new"
        await run.started()
        if not run.running:
            raise self.host_gone(self.live.executions.view(execution_id), silent=True)[1]
        faultpoints.reach("node.context.host_started")
        return run

    # --- ends -------------------------------------------------------------------------------------------

    def host_gone(self, view: View, *, silent: bool) -> tuple[str, BellglassError]:
        """The status of a run whose host has ended, and why it did. `silent`: it said nothing of the run."""
        if (error := view.failure()) is not None:
            return "lost", error
        record = view.record()
        code = record["exit_code"]
        if (why := self._killed.get(view.id)) is not None:
            return "died", self.died(why)
        if record["oom_killed"]:
            return "died", self.died("oom")
        if record["signal"]:
            return "died", self.died("signal", signal=record["signal"])
        if silent and code in (126, 127):
            return "lost", NotSupported(
                f"the sandbox's template has no code interpreter: {host.PROGRAM} can't be run",
                hint='create the sandbox with the template "interpreter"',
            )
        return "died", self.died("exited", code=code)

    def died(
        self, reason: str, message: str | None = None, *, signal: str | int | None = None, code: int | None = None
    ) -> KernelDied:
        if isinstance(signal, int):
            signal = signals.Signals(signal).name if signal in set(signals.Signals) else str(signal)
        said = message or _SAID[reason].format(signal=signal or "a signal")
        details = {"context_id": self.id, "reason": reason, "signal": signal, "code": code, "state_lost": True}
        return KernelDied(
            f"context {self.id}: {said}{f' with {code}' if reason == 'exited' and code is not None else ''}",
            hint="its variables are gone; the next run has a fresh kernel",
            details=details,
        )

    async def broken(self, execution_id: str, how: str) -> KernelDied:
        """The host said what no host says: it goes."""
        if execution_id == self.row.execution_id:
            await self.end_host("protocol")
        return self.died("protocol", f"{_SAID['protocol']}: {how}")

    def _store(self, row: StoredContext) -> None:
        if not self.live.closed:
            self.live.context_rows.put(self.live.sandbox_id, row)
        self.row = row
