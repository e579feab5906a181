"""A sandbox that runs: its machine, the session with its agent, its executions, its clocks.

What ends it is decided in sandboxes.py; here are the things that notice: the lifetime's and the idle clock, the death
of the machine, and a killed tree that does not die.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bellglass import faultpoints
from bellglass.errors import BellglassError
from bellglass.model import SandboxSpec, TerminationReason
from bellglass.node.contexts.registry import Contexts
from bellglass.node.drivers.base import Groups, Handle
from bellglass.node.executions.records import Records, StreamIds
from bellglass.node.executions.registry import REAP_S, Executions, Limits
from bellglass.node.executions.run import Run
from bellglass.node.files.watches import Watches
from bellglass.node.guestlink.session import GuestSession
from bellglass.node.tasks import Tasks

LONGEST_TIMER_S = 3600.0
REAP_FIRST_S = 0.005
log = logging.getLogger("bellglass.sandboxes")
EndCall = Callable[["LiveSandbox", TerminationReason, str | None], None]


class LiveSandbox:
    """`on_end(live, reason, message)` is called when the sandbox has to end; it may be called more than once."""

    def __init__(
        self,
        *,
        sandbox_id: str,
        generation: int,
        spec: SandboxSpec,
        shell: str,
        handle: Handle,
        records: Records,
        folder: Path,
        limits: Limits,
        on_end: EndCall,
    ) -> None:
        self.sandbox_id = sandbox_id
        self.generation = generation
        self.spec = spec
        self.shell = shell
        self.handle = handle
        self.groups: Groups | None = handle.groups
        self.default_cwd = spec.workdir
        self.expires_at_unix = 0.0
        self.idle_timeout_s: float | None = None
        self.on_close: Callable[[str], Awaitable[None]] | None = None
        """Called with the sandbox's id when it ends, before its machine dies."""
        self.operations = 0
        """File operations under way."""
        self.listed_bytes = 0
        """What lists that are under way hold."""
        self._list_turn = asyncio.Lock()
        self.watches = Watches()
        self._on_end = on_end
        self._tasks = Tasks(log)
        self._last_activity = time.monotonic()
        self._lifetime_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._reap_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._frozen_for: set[str] = set()
        self.thawed_at = float("-inf")
        """By the monotonic clock; -inf for one that never stood still."""
        self._freeze_lock = threading.Lock()
        stream_ids = StreamIds(records, sandbox_id)
        self.session = GuestSession(
            handle, hostname=sandbox_id, next_stream_id=stream_ids, highest_id=stream_ids.highest_used
        )
        self.executions = Executions(self, records, folder, limits)
        self.context_rows = records.contexts
        self.contexts = Contexts(self)

    # --- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen for the agent."""
        self.session.start()

    def adopt(self) -> None:
        """Before `start`: go on with what ran when an earlier node stopped."""
        self.executions.adopt()
        self.contexts.adopt()
        self._reap_timer = asyncio.get_running_loop().call_later(REAP_FIRST_S, self._reap)

    def watch_machine(self) -> None:
        """From now on a machine that dies ends the sandbox; one that has died already is told again."""
        if not self._tasks.has(f"machine:{self.sandbox_id}"):
            self.spawn(self._watch_machine(), f"machine:{self.sandbox_id}")

    def claimed(self, spec: SandboxSpec) -> None:
        """A pool's machine becomes the sandbox that `spec` describes."""
        self.spec, self.default_cwd = spec, spec.workdir

    def set_clocks(self, *, expires_at_unix: float, idle_timeout_s: float | None) -> None:
        """From now on; also a change of them."""
        self.expires_at_unix, self.idle_timeout_s = expires_at_unix, idle_timeout_s
        self._cancel(self._lifetime_timer, self._idle_timer)
        self._lifetime_timer = self._idle_timer = None
        self.active()
        self._lifetime_due()
        self._idle_due()

    def stop_clocks(self) -> None:
        """Until they are set again."""
        self._cancel(self._lifetime_timer, self._idle_timer)
        self._lifetime_timer = self._idle_timer = None

    async def suspend(self) -> None:
        """The node stops; the machine and what runs in it go on."""
        self.executions.suspend()
        await self._close_all(BellglassError("the node is stopping"))

    async def close(self, error: BellglassError) -> None:
        """The sandbox ended: whoever waits hears `error`."""
        await self._close_all(error)
        if self.on_close is not None:
            await self.on_close(self.sandbox_id)

    async def _close_all(self, error: BellglassError) -> None:
        self._closed = True
        self._cancel(self._lifetime_timer, self._idle_timer, self._reap_timer)
        await self.session.close(error)
        await self._tasks.close()

    # --- for executions (Host) and operations -----------------------------------------------------------

    def active(self) -> None:
        """Something happens in this sandbox: the idle clock begins anew."""
        self._last_activity = time.monotonic()

    @asynccontextmanager
    async def list_turn(self) -> AsyncIterator[None]:
        """Around a piece of the work for a list: one of the sandbox's for each turn of the loop, however many list."""
        async with self._list_turn:
            yield
            await asyncio.sleep(0)

    def run_started(self, run: Run) -> None:
        self.active()
        self.executions.stored(run)

    def run_resized(self, run: Run) -> None:
        self.executions.resized(run)

    def input_ended(self, run: Run, offset: int) -> None:
        self.executions.input_ended(run, offset)

    def run_finished(self, run: Run, record: dict[str, Any] | None) -> None:
        self.active()
        if not self._closed and self._reap_timer is None:
            # Behind the answer, not before it.
            self._reap_timer = asyncio.get_running_loop().call_later(REAP_FIRST_S, self._reap)
        self.executions.ended(run, record)

    def kill_machine(self, why: str) -> None:
        log.error("sandbox %s is killed: %s", self.sandbox_id, why)
        self._on_end(self, TerminationReason.FAILED, why)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        """A task that ends with the sandbox."""
        if self._closed:
            coroutine.close()
            return
        self._tasks.spawn(coroutine, name)

    # --- standing still ---------------------------------------------------------------------------------

    def freeze(self, why: str) -> None:
        """Its executions stand still, never the agent, until each `why` is thawed. Safe to repeat, and in any thread:
        what was started since is frozen too."""
        with self._freeze_lock:
            self._frozen_for.add(why)
            self._apply_freeze()

    def thaw(self, why: str) -> None:
        """Safe to repeat, and in any thread."""
        with self._freeze_lock:
            if self._frozen_for == {why}:
                self.thawed_at = time.monotonic()
            self._frozen_for.discard(why)
            self._apply_freeze()

    @property
    def closed(self) -> bool:
        """It has ended, or its node stops."""
        return self._closed

    @property
    def frozen(self) -> bool:
        return bool(self._frozen_for)

    def not_frozen(self) -> list[str]:
        """The executions that go on although they were told to freeze."""
        return self.groups.not_frozen() if self.groups is not None else []

    def kill_group(self, execution_id: str) -> None:
        if self.groups is not None:
            self.groups.kill(execution_id)

    def oom_kills(self) -> int:
        """How many of its processes were killed for memory so far."""
        try:
            return self.groups.oom_kills() if self.groups is not None else 0
        except FileNotFoundError:
            return 0  # the machine is gone

    def unwritten_bytes(self) -> int:
        """What it has written, but the kernel not yet to its disk."""
        return self.groups.unwritten_bytes() if self.groups is not None else 0

    def _apply_freeze(self) -> None:
        if self.groups is not None and not self._closed:
            self.groups.freeze(frozen=bool(self._frozen_for))

    # --- inside -----------------------------------------------------------------------------------------

    async def _watch_machine(self) -> None:
        cause = await self.handle.wait()
        reason = TerminationReason.OOM if cause == "oom" else TerminationReason.FAILED
        self._on_end(self, reason, f"its machine died ({cause})")

    def _lifetime_due(self) -> None:
        left_s = self.expires_at_unix - time.time()
        if left_s <= 0:
            faultpoints.reach("node.lifetime.due")
            self._on_end(self, TerminationReason.LIFETIME, None)
        else:
            # In steps: the wall clock may be set meanwhile.
            loop = asyncio.get_running_loop()
            self._lifetime_timer = loop.call_later(min(left_s + 0.001, LONGEST_TIMER_S), self._lifetime_due)

    def _idle_due(self) -> None:
        if self.idle_timeout_s is None:
            return
        if self.executions.running.keys() - self.contexts.resting() or self.operations:
            self.active()
        left_s = self._last_activity + self.idle_timeout_s - time.monotonic()
        if left_s <= 0:
            self._on_end(self, TerminationReason.IDLE, None)
        else:
            self._idle_timer = asyncio.get_running_loop().call_later(left_s + 0.001, self._idle_due)

    def _reap(self) -> None:
        """Groups of ended executions go once their background processes are gone; the kernel has no event that costs
        less than looking now and then."""
        self._reap_timer = None
        if not self._closed and self.executions.remove_groups():
            self._reap_timer = asyncio.get_running_loop().call_later(REAP_S, self._reap)

    @staticmethod
    def _cancel(*timers: asyncio.TimerHandle | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()
