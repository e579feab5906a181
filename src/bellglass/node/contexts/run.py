"""One run of code in a context: begun, read to its end by one reader at a time, interrupted where nobody waits.

The reader is the client's answer while there is one, which then holds the host back when it is slow; a task of the
sandbox reads on where the client went away. Either way the run is over when its end was read, or its host is gone.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bellglass import faultpoints
from bellglass.errors import AgentLost, BellglassError, Conflict, KernelDied, NotFound
from bellglass.node.contexts import host
from bellglass.node.contexts.answers import Answer
from bellglass.node.contexts.lines import HostBroken, HostEvent
from bellglass.node.contexts.reading import Reading
from bellglass.node.contexts.store import StoredRun
from bellglass.node.executions.registry import View

if TYPE_CHECKING:
    from bellglass.node.contexts.context import Context

RETURN_S = 30.0
"""How long a run goes on for a client whose server went away, or while the node was."""
ENDS = ("end", "died")
CATCH_UP_S = 2.0
"""After a restart of the node, before a deadline that passed meanwhile counts: an end in time is read first."""
STOP_S = 15.0
"""From an interrupt to the end of the run: the host kills a kernel that does not stop after 5 s. Then the host goes."""
DID_NOT_STOP = "its kernel did not stop when it was interrupted, and was killed"
log = logging.getLogger("bellglass.contexts")


class ContextRun:
    """`ended` is set once `outcome` is there. `context` is told first."""

    def __init__(self, context: Context, row: StoredRun, *, adopted: bool = False) -> None:
        self.row = row
        self.ended = asyncio.Event()
        self.outcome: dict[str, Any] = {}
        """`run_id status execution_count timed_out interrupted duration_s error`; the status is `ok`, `error` (the code
        raised), `died` or `lost`."""
        self.failure: BellglassError | None = None
        """With the status `died` or `lost`: why."""
        self._context = context
        self._live = context.live
        self._loop = asyncio.get_running_loop()
        self._adopted = adopted
        self._reader: asyncio.Task[Any] | None = None
        self._position = row.start
        """Behind the last line that was read."""
        self._count: int | None = None
        self._handed = False
        """Its code was sent to the host in this life of the node."""
        self._started = False
        self._raised = False
        self._state_lost = False
        self._timed_out = False
        self._interrupted = False
        self._deadline: asyncio.TimerHandle | None = None
        self._return: asyncio.TimerHandle | None = None
        self._stop: asyncio.TimerHandle | None = None
        self._oom_kills = self._live.oom_kills()
        if row.deadline_at is not None:
            left_s = max(row.deadline_at - time.time(), CATCH_UP_S if adopted else 0.0)
            self._deadline = self._loop.call_later(left_s, self._deadline_passed)

    # --- for the context --------------------------------------------------------------------------------

    def begin(self, code: str, env: dict[str, str]) -> None:
        """Hand the code to the host. What goes wrong with that shows in what the host writes, or in its end."""
        self._live.active()
        self._hand(code, env)

    def adopt(self) -> None:
        """It was under way when an earlier node stopped."""
        self._read_on()
        self._return = self._loop.call_later(RETURN_S, self._nobody_came)

    def interrupt(self) -> None:
        """Stop the code; the kernel's state stays, if it lets itself be interrupted. Safe to repeat."""
        if self.ended.is_set() or not self._context.is_current(self):
            return
        self._interrupted = True
        self._live.spawn(self._write_interrupt(), f"context:write:{self.row.id}")
        if self._stop is None:
            self._stop = self._loop.call_later(STOP_S, self._does_not_stop)

    # --- for clients ------------------------------------------------------------------------------------

    async def deliver(
        self, answer: Answer, *, after: int | None, code: str, env: dict[str, str], quiet_s: float
    ) -> None:
        """Send the run's events from its beginning, or from the offset `after` on, and its end. A reader that was there
        before gives way. Raises its failure where nothing was sent yet."""
        if self._reader is not None:
            self._reader.cancel()
        me = self._reader = asyncio.current_task()
        self._cancel_timer("_return")
        if self._adopted and not self._started:
            # The node may have been killed in the middle of the line. A host that had it whole knows the id.
            self._hand(code, env)
        try:
            view = self._live.executions.view(self.row.execution_id)
        except NotFound:
            raise _output_gone(self.row.id) from None
        reading = Reading(view, max(after or 0, self.row.start), self._live.session.budget)
        hold = view.run is not None and not self.ended.is_set()
        if hold and view.run is not None:
            view.run.reader_attached(reading.cursor, holds=True)
        try:
            await reading.seek()
            await self._pass_on(reading, view, answer, quiet_s)
        finally:
            here, whole = self._reader is me, self.ended.is_set()
            hung_up = answer.stream.peer_gone == "reset"
            if hold and view.run is not None:
                view.run.reader_detached(reading.cursor, hung_up=False, keep_place=not whole and not hung_up)
            if here:
                self._reader = None
            if here and not whole:
                self.abandon(hung_up=hung_up)

    def abandon(self, *, hung_up: bool) -> None:
        """Its client is gone: for good, or with its server. Nothing where another one reads."""
        if self._reader is not None:
            return
        self._read_on()
        if hung_up:
            self.interrupt()
        else:
            self._return = self._loop.call_later(RETURN_S, self._nobody_came)

    # --- reading ----------------------------------------------------------------------------------------

    async def _pass_on(self, reading: Reading, view: View, answer: Answer, quiet_s: float) -> None:
        # One that is over, or was before the node was restarted, is read again as far as its log goes.
        last = None if self._context.is_current(self) else view.log.total_bytes
        over = False
        while not over and (last is None or reading.cursor.offset < last):
            try:
                events = await self._next(reading, view, quiet_s)
            except TimeoutError:
                await answer.keepalive()
                continue
            if reading.skipped_bytes:
                await answer.skipped(reading.skipped_bytes)
                reading.skipped_bytes = 0
            if events is None:
                break
            own = []
            for event in events:
                if event.run == self.row.id and not over:
                    own.append(event)
                    over = event.kind in ENDS
            await answer.events(own)
            if view.run is not None:
                view.run.reader_progressed()
        if last is not None and not self.ended.is_set():
            self._finish("lost", _output_gone(self.row.id))
        if self.failure is not None and not answer.begun:
            raise self.failure
        await answer.end(self.outcome)

    async def _read_to_end(self) -> None:
        view = self._live.executions.view(self.row.execution_id)
        reading = Reading(view, self._position, self._live.session.budget)
        await reading.seek()
        while not self.ended.is_set():
            with suppress(TimeoutError):
                await self._next(reading, view, RETURN_S)

    def _read_on(self) -> None:
        if self.ended.is_set():
            return
        self._live.spawn(self._as_reader(), f"context:run:{self.row.id}")

    async def _as_reader(self) -> None:
        if self._reader is None:
            self._reader = asyncio.current_task()
            await self._read_to_end()

    async def _next(self, reading: Reading, view: View, wait_s: float) -> list[HostEvent] | None:
        """The next events, noted. None: there are no more, and the run is over."""
        try:
            events = await reading.batch(wait_s)
        except HostBroken as broken:
            log.warning("kernel host of %s in %s: %s", self._context.id, self._live.sandbox_id, broken)
            self._finish("died", await self._context.broken(self.row.execution_id, str(broken)))
            return None
        if events is None:
            self._finish(*self._context.host_gone(view, silent=not self._started))
            return None
        for event in events:
            self._position = event.end
            if event.run == self.row.id:
                self._note(event)
        return events

    def _note(self, event: HostEvent) -> None:
        if event.kind == "started":
            self._started, self._count = True, event.value["count"]
            event.value["state_lost"] = self._state_lost = event.value["state_lost"] or self.row.state_lost
            faultpoints.reach("node.context.run_started")
        elif event.kind == "error":
            self._raised = True
        elif event.kind == "end":
            self._finish("error" if self._raised else "ok", None)
        elif event.kind == "died":
            death = dict(event.value)
            if death["reason"] == "signal" and self._live.oom_kills() > self._oom_kills:
                death["reason"] = "oom"  # the host sees a SIGKILL
            stubborn = (self._timed_out or self._interrupted) and death["signal"] in (signal.SIGKILL, "SIGKILL")
            said = DID_NOT_STOP if stubborn and death["reason"] == "signal" else None
            self._finish("died", self._context.died(**death, message=said))

    def _finish(self, status: str, failure: BellglassError | None) -> None:
        if self.ended.is_set():
            return
        for name in ("_deadline", "_return", "_stop"):
            self._cancel_timer(name)
        flags = {"timed_out": self._timed_out, "interrupted": self._interrupted and not self._timed_out}
        if isinstance(failure, KernelDied):
            failure.details |= {"run_id": self.row.id, **flags}
        self.failure = failure
        self.outcome = {
            "run_id": self.row.id,
            "status": status,
            "execution_count": self._count,
            "state_lost": self._state_lost or isinstance(failure, KernelDied),
            **flags,
            "duration_s": round(max(time.time() - self.row.started_at, 0.0), 6),
            "error": failure.to_dict()["error"] if failure is not None else None,
        }
        faultpoints.reach("node.context.run_ended")
        self._live.active()
        self._context.run_ended(self)
        self.ended.set()

    # --- clocks -----------------------------------------------------------------------------------------

    def _deadline_passed(self) -> None:
        self._timed_out = True
        self.interrupt()

    def _nobody_came(self) -> None:
        self._return = None
        self.interrupt()

    def _does_not_stop(self) -> None:
        if self._live.frozen:  # it can't
            self._stop = self._loop.call_later(STOP_S, self._does_not_stop)
        elif not self._handed and not self._started:
            # Nothing of it runs: the kernel needs not to go for it.
            self._finish("lost", AgentLost(f"the node ended while it began run {self.row.id}, and no client came back"))
        else:
            self._context.kill_host("unresponsive")

    def _cancel_timer(self, name: str) -> None:
        timer = getattr(self, name)
        if timer is not None:
            timer.cancel()
        setattr(self, name, None)

    # --- writing ----------------------------------------------------------------------------------------

    def _hand(self, code: str, env: dict[str, str]) -> None:
        self._handed = True
        self._live.spawn(self._write_run(host.run_line(self.row.id, code, env)), f"context:write:{self.row.id}")

    async def _write_run(self, line: bytes) -> None:
        if await self._write(line):
            faultpoints.reach("node.context.run_sent")

    async def _write_interrupt(self) -> None:
        if await self._write(host.interrupt_line()):
            faultpoints.reach("node.context.interrupted")

    async def _write(self, line: bytes) -> bool:
        """Whether there was a host to take it."""
        run = self._live.executions.running.get(self.row.execution_id)
        if run is None:
            return False  # the reader finds the host gone
        try:
            # A line that a killed node left unfinished ends here, and is none.
            await run.input().write(b"\n" + line)
        except Conflict:
            return False  # the same
        return True


def _output_gone(run_id: str) -> AgentLost:
    return AgentLost(f"what run {run_id} wrote is not kept any more; its outcome is unknown")
