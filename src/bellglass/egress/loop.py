"""A small event loop for the two processes: coroutines over epoll, with a turn for each sandbox in rotation.

asyncio would cost each process 6 MiB and has no notion of whose work a callback is. Here every task belongs to a group
(a sandbox's id, None for our own work, which goes first), and groups take turns step by step: one with hundreds of busy
connections slows the others no more than one with a single connection. A step is one run of a coroutine up to its next
wait, so a coroutine that may have much to do calls `await loop.breathe()` in between.

Sockets are watched edge-triggered and registered once: try the call first, wait only after BlockingIOError. `cancel`
closes the coroutine at once, inside the call (its `finally` clauses run and may not await), so that after it nothing of
the task happens any more.
"""

from __future__ import annotations

import heapq
import select
import traceback
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from time import monotonic, sleep
from typing import Any, Protocol

from bellglass.egress.log import log

SLICE_S = 0.0005
"""For so long tasks run before the kernel is asked what else has happened."""
STEP_S = 0.00025
"""After so long a step gives way, where it asks."""
REST_S = 0.00003
"""Who never sleeps keeps its processor until the clock ticks, 4 ms at 250 Hz, whoever has woken meanwhile."""
EVENTS = 256
_EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_READ = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_WRITE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Task:
    """A running coroutine. `error` is what ended it, if that was an exception."""

    __slots__ = ("_coroutine", "_failure", "_loop", "_park", "_timer", "done", "error", "group", "on_done")

    def __init__(self, loop: Loop, coroutine: Coroutine[Any, Any, None], group: str | None) -> None:
        self.group = group
        self.done = False
        self.error: Exception | None = None
        self.on_done: Callable[[Task], None] | None = None
        self._loop = loop
        self._coroutine = coroutine
        self._park = 0  # counts the waits, so that a late timer or edge of an earlier one is known as such
        self._timer = False
        self._failure: Exception | None = None

    def cancel(self) -> None:
        """Ends it now; nothing when it has ended. From within the task itself nothing: that one ends by itself."""
        if not self.done and self._loop._current is not self:
            self.done = True
            self._coroutine.close()
            self._end()

    def _end(self) -> None:
        self.done = True
        self._loop._tasks.discard(self)
        if self._timer:
            self._timer = False
            self._loop._stale_timers += 1
        if self.on_done is not None:
            self.on_done(self)


class _Watch:
    __slots__ = ("readable", "reader", "writable", "writer")

    def __init__(self) -> None:
        self.reader: tuple[Task, int] | None = None
        self.writer: tuple[Task, int] | None = None
        self.readable = False  # an edge that came while nobody waited
        self.writable = False


class Signal:
    """Wakes all that wait. Level: once set, waits return at once until `clear`."""

    __slots__ = ("_loop", "_waiting", "is_set")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: list[tuple[Task, int]] = []
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        waiting, self._waiting = self._waiting, []
        for task, park in waiting:
            self._loop._wake(task, park)

    def clear(self) -> None:
        self.is_set = False

    async def wait(self, deadline: float | None = None) -> None:
        """Raises TimeoutError at the deadline."""
        while not self.is_set:
            self._waiting = [entry for entry in self._waiting if not entry[0].done]
            self._waiting.append(self._loop._parking(deadline))
            await self._loop._suspend()


class Loop:
    def __init__(self) -> None:
        self._epoll = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._watches: dict[int, _Watch] = {}
        self._tasks: set[Task] = set()
        self._own: deque[Task] = deque()
        self._queues: dict[str, deque[Task]] = {}
        self._rota: deque[str] = deque()
        self._timers: list[tuple[float, int, Task, int]] = []
        self._timer_count = 0
        self._stale_timers = 0
        self._current: Task | None = None
        self._step_end = 0.0
        self._stopping = False

    # --- for everybody -----------------------------------------------------------------------------------

    def spawn(self, coroutine: Coroutine[Any, Any, None], group: str | None = None) -> Task:
        """Runs it from the next turn on. An exception that leaves it is told on stderr and ends this task alone."""
        task = Task(self, coroutine, group)
        self._tasks.add(task)
        self._ready(task)
        return task

    def run(self) -> None:
        """Until `stop`."""
        rested_at = monotonic()
        while not self._stopping:
            if monotonic() > rested_at + SLICE_S:
                sleep(REST_S)
                rested_at = monotonic()
            if self._poll():
                rested_at = monotonic()
            self._fire_timers()
            end = monotonic() + SLICE_S
            while self._run_one() and monotonic() < end:
                pass

    def stop(self) -> None:
        self._stopping = True

    def shutdown(self) -> None:
        """Cancel all tasks, after `run` has returned."""
        for task in list(self._tasks):
            task.cancel()
        self._epoll.close()

    def close(self, sock: HasDescriptor) -> None:
        """Close a socket that was waited for. Safe to repeat. Who waits on it sleeps until cancelled or timed out."""
        fd = sock.fileno()
        if fd >= 0:
            self._watches.pop(fd, None)
            sock.close()

    # --- inside coroutines -------------------------------------------------------------------------------

    async def readable(self, sock: HasDescriptor, deadline: float | None = None) -> None:
        """After a read gave BlockingIOError. Raises TimeoutError at the deadline (time.monotonic)."""
        watch = self._watch(sock)
        if watch.readable:
            watch.readable = False
            return
        watch.reader = self._parking(deadline)
        await self._suspend()

    async def writable(self, sock: HasDescriptor, deadline: float | None = None) -> None:
        """After a write or connect gave BlockingIOError. Raises TimeoutError at the deadline."""
        watch = self._watch(sock)
        if watch.writable:
            watch.writable = False
            return
        watch.writer = self._parking(deadline)
        await self._suspend()

    async def turn(self) -> None:
        """Let the others go first."""
        task = self._current
        assert task is not None
        task._park += 1
        self._ready(task)
        await self._suspend()

    async def breathe(self) -> None:
        """In a loop that may never have to wait: a turn for the others once this step has had its time."""
        if monotonic() > self._step_end:
            await self.turn()

    async def either(self, one: HasDescriptor, other: HasDescriptor, deadline: float | None = None) -> None:
        """Until one of the two is readable, after reading either gave BlockingIOError. Raises TimeoutError."""
        first, second = self._watch(one), self._watch(other)
        if first.readable or second.readable:
            first.readable = second.readable = False
            return
        first.reader = second.reader = self._parking(deadline)
        await self._suspend()

    async def sleep(self, seconds: float) -> None:
        try:
            self._parking(monotonic() + seconds)
            await self._suspend()
        except TimeoutError:
            return

    # --- inner -------------------------------------------------------------------------------------------

    @types.coroutine
    def _suspend(self) -> Generator[None, None, None]:
        yield

    def _watch(self, sock: HasDescriptor) -> _Watch:
        fd = sock.fileno()
        watch = self._watches.get(fd)
        if watch is None:
            watch = self._watches[fd] = _Watch()
            self._epoll.register(fd, _EDGES)  # tells at once what is ready already
        return watch

    def _parking(self, deadline: float | None) -> tuple[Task, int]:
        task = self._current
        assert task is not None
        task._park += 1
        if deadline is not None:
            self._timer_count += 1
            task._timer = True
            heapq.heappush(self._timers, (deadline, self._timer_count, task, task._park))
        return task, task._park

    def _wake(self, task: Task, park: int, failure: Exception | None = None) -> None:
        if task.done or task._park != park:
            return
        task._park += 1
        task._failure = failure
        if task._timer:
            task._timer = False
            self._stale_timers += failure is None
        self._ready(task)

    def _ready(self, task: Task) -> None:
        if task.group is None:
            self._own.append(task)
            return
        queue = self._queues.get(task.group)
        if queue is None:
            queue = self._queues[task.group] = deque()
            self._rota.append(task.group)
        queue.append(task)

    def _poll(self) -> bool:
        """What has happened, or what happens next when there is nothing to do; whether it slept for that."""
        happened = self._epoll.poll(0.0, EVENTS)
        sleeps = not (happened or self._own or self._rota)
        if sleeps:
            timeout = max(0.0, self._timers[0][0] - monotonic()) if self._timers else -1.0
            sleeps = timeout != 0.0
            happened = self._epoll.poll(timeout, EVENTS)
        for fd, events in happened:
            watch = self._watches.get(fd)
            if watch is None:
                continue
            if events & _READ:
                if watch.reader is None:
                    watch.readable = True
                else:
                    waiting, watch.reader = watch.reader, None
                    # One that was cancelled or timed out has gone; the next to come must still hear of it.
                    watch.readable = waiting[0].done or waiting[0]._park != waiting[1]
                    self._wake(*waiting)
            if events & _WRITE:
                if watch.writer is None:
                    watch.writable = True
                else:
                    waiting, watch.writer = watch.writer, None
                    watch.writable = waiting[0].done or waiting[0]._park != waiting[1]
                    self._wake(*waiting)
        return sleeps

    def _fire_timers(self) -> None:
        now = monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, task, park = heapq.heappop(self._timers)
            if task.done or task._park != park:
                self._stale_timers = max(0, self._stale_timers - 1)
            else:
                self._wake(task, park, TimeoutError())
        if self._stale_timers > 1000 and self._stale_timers * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].done and entry[2]._park == entry[3]]
            heapq.heapify(self._timers)
            self._stale_timers = 0

    def _run_one(self) -> bool:
        """One step of the next task; False when there is none."""
        if self._own:
            self._step(self._own.popleft())
            return True
        if not self._rota:
            return False
        group = self._rota.popleft()
        queue = self._queues[group]
        task = queue.popleft()
        if queue:
            self._rota.append(group)
        else:
            del self._queues[group]
        self._step(task)
        return True

    def _step(self, task: Task) -> None:
        if task.done:
            return
        failure, task._failure = task._failure, None
        self._current = task
        self._step_end = monotonic() + STEP_S
        try:
            if failure is None:
                task._coroutine.send(None)
            else:
                task._coroutine.throw(failure)
        except StopIteration:
            task._end()
        except Exception as error:  # noqa: BLE001 - one connection's bug must not end the others
            task.error = error
            log("a task failed", error="".join(traceback.format_exception(error)))
            task._end()
        finally:
            self._current = None
