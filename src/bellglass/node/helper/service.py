"""The helper's loop: one thread that takes requests and hands each to a worker, which does the work and answers.

So an operation's crash is an error of that operation alone. Those of one sandbox go one after the other, in the order
in which they came: a reclaim must not overtake the lease before it. A few workers are kept for what comes
next in a burst: forking one costs 1 ms, and 2 more for the pages that it then writes to.
The loop ends when the node's end of the socket closes, and its workers with it: each step can be cut off, and the next
helper must not meet somebody at work on what it reclaims.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bellglass.errors import BellglassError, InternalError, InvalidRequest, NoCapacity
from bellglass.node.helper.context import Context
from bellglass.node.helper.operations import Operation, parse
from bellglass.node.helper.worker import Worker, fork
from bellglass.times import now

MAX_MESSAGE_BYTES = 65536
MAX_CHILDREN = 16
IDLE_WORKERS = 2
IDLE_S = 0.25
"""For a burst of operations, not beyond: a worker holds some MiB of its own."""
_SO_PEERCRED = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class _Request:
    id: int
    op: str
    operation: Operation
    fields: Mapping[str, Any]
    message: bytes

    @property
    def sandbox_id(self) -> str | None:
        return self.fields.get("sandbox_id")


@dataclass(slots=True)
class _Busy:
    worker: Worker
    request: _Request
    deadline: float
    hung_up: bool = False


class _Workers:
    """Those at work and those that wait, the one used last at the end: the others grow old and are ended."""

    def __init__(self, context: Context, channel: socket.socket) -> None:
        self.busy: dict[int, _Busy] = {}
        self._idle: list[tuple[Worker, float]] = []
        self._context = context
        self._channel = channel

    def begin(self, request: _Request) -> None:
        """Raises NoCapacity when the host has no process left for it."""
        deadline = time.monotonic() + request.operation.timeout_s
        while self._idle:
            worker, _ = self._idle.pop()
            if worker.give(request.message):
                break
            worker.channel.close()
        else:
            try:
                worker = fork(self._all(), lambda message: _act(self._context, self._channel, message))
            except OSError as error:  # of processes, memory or descriptors: later there may be some
                log("can't fork", op=request.op, error=str(error))
                raise NoCapacity(
                    f"the helper can't start a process for {request.op}: {error}",
                    details={"resource": "pids"},
                    hint="the host is out of processes, memory or open files: see its kernel log, then try again",
                ) from error
            worker.give(request.message)  # one that has died already is told of by its end
        self.busy[worker.pid] = _Busy(worker, request, deadline)

    def register(self, poll: select.poll) -> None:
        for one in self.busy.values():
            if not one.hung_up:  # its end is told by SIGCHLD
                poll.register(one.worker.channel, select.POLLIN)

    def poll_ms(self) -> float | None:
        due = [one.deadline for one in self.busy.values()] + [since + IDLE_S for _, since in self._idle]
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None

    def look(self, ready: Container[int]) -> None:
        """Who is done waits for more, who has worked or waited for too long is ended."""
        now_s = time.monotonic()
        for pid, one in list(self.busy.items()):
            if one.worker.channel.fileno() in ready:
                if one.worker.is_ready():
                    del self.busy[pid]
                    self._idle.append((one.worker, now_s))
                    continue
                one.hung_up = True
            if now_s > one.deadline:
                os.kill(pid, signal.SIGKILL)
        while self._idle and (len(self._idle) > IDLE_WORKERS or now_s > self._idle[0][1] + IDLE_S):
            self._idle.pop(0)[0].channel.close()  # it reads the end and ends

    def ended(self, pid: int) -> _Request | None:
        """What it was at, if that is one of the workers and it was at something."""
        if (one := self.busy.pop(pid, None)) is not None:
            one.worker.channel.close()
            return one.request
        for waiting in self._idle:
            if waiting[0].pid == pid:
                waiting[0].channel.close()
                self._idle.remove(waiting)
                break
        return None

    def _all(self) -> list[Worker]:
        return [one.worker for one in self.busy.values()] + [worker for worker, _ in self._idle]


def serve(context: Context, channel: socket.socket) -> None:
    """Until the node is gone. Raises PermissionError when somebody else than its parent made the channel."""
    pid, uid, _ = _SO_PEERCRED.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _SO_PEERCRED.size))
    # A socketpair tells who made it: the launcher, as root, before it became the node.
    if pid != os.getppid() or uid != 0:
        raise PermissionError(f"the channel was made by pid {pid}, uid {uid}, not by the launcher {os.getppid()}")
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # workers then share these pages for longer
    # The node may go without having read its last answers: that resets the channel, or breaks it for the next answer.
    with suppress(ConnectionResetError, BrokenPipeError):
        _loop(channel, wake_read, _Workers(context, channel))


def _loop(channel: socket.socket, wake_read: int, workers: _Workers) -> None:
    waiting: list[_Request] = []
    while True:
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        if len(workers.busy) + len(waiting) < MAX_CHILDREN:
            poll.register(channel, select.POLLIN)
        workers.register(poll)
        ready = dict(poll.poll(workers.poll_ms()))
        if wake_read in ready:
            os.read(wake_read, 4096)
        workers.look(ready)
        _reap(channel, workers)
        if channel.fileno() in ready:
            message = channel.recv(MAX_MESSAGE_BYTES)
            if not message:
                return
            if (request := _parse(channel, message)) is not None:
                waiting.append(request)
        _begin(channel, workers, waiting)


def _parse(channel: socket.socket, message: bytes) -> _Request | None:
    """None for one that is refused, and was answered so."""
    request_id = -1
    try:
        request = json.loads(message)
        request_id = request["id"] if isinstance(request, dict) and type(request.get("id")) is int else -1
        operation, fields = parse(request)
        return _Request(request_id, request["op"], operation, fields, message)
    except (ValueError, RecursionError):
        _answer(channel, request_id, error=InvalidRequest("a request is JSON"))
    except InvalidRequest as error:
        log("refused", id=request_id, error=error.message)
        _answer(channel, request_id, error=error)
    return None


def _begin(channel: socket.socket, workers: _Workers, waiting: list[_Request]) -> None:
    """Each that has no earlier one of its sandbox before it."""
    at_work = {one.request.sandbox_id for one in workers.busy.values()} - {None}
    for request in list(waiting):
        if request.sandbox_id in at_work:
            continue
        waiting.remove(request)
        if request.sandbox_id is not None:
            at_work.add(request.sandbox_id)
        try:
            workers.begin(request)
        except NoCapacity as error:
            _answer(channel, request.id, error=error)


def _act(context: Context, channel: socket.socket, message: bytes) -> bool:
    """In a worker: act and answer. False after a failure, which may have left anything."""
    began, request = time.monotonic(), json.loads(message)
    operation, fields = parse(request)
    about = {"op": request["op"], "sandbox_id": fields.get("sandbox_id")}
    try:
        result: Mapping[str, Any] = {}
        failure: BellglassError | None = None
        try:
            result = operation.act(context, fields)
        except BellglassError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - becomes a typed answer, with its traceback in the log
            traceback.print_exc()
            failure = InternalError(f"{request['op']}: {type(error).__name__}: {error}")
        outcome: dict[str, Any] = {"error": failure.message} if failure is not None else {}
        if "profile_ms" in result:
            outcome["profile_ms"] = result["profile_ms"]
        elapsed_ms = round((time.monotonic() - began) * 1000, 1)
        log("done" if failure is None else "failed", **about, ms=elapsed_ms, **outcome)
        _answer(channel, request["id"], result=result, error=failure)
        return failure is None
    except BrokenPipeError:
        log("nobody to answer to", **about)
        return False
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        with suppress(OSError):  # as in `log`
            sys.stderr.flush()


def _reap(channel: socket.socket, workers: _Workers) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        # A pid that isn't here was a machine's first process: as a subreaper the helper inherits it from the runtime.
        request = workers.ended(pid)
        if request is not None and status != 0:
            code = os.waitstatus_to_exitcode(status)
            op = request.op
            log("crashed", op=op, exit=code)
            _answer(channel, request.id, error=InternalError(f"{op} died ({code}): see the helper's log"))


def _answer(
    channel: socket.socket,
    request_id: int,
    *,
    result: Mapping[str, Any] | None = None,
    error: BellglassError | None = None,
) -> None:
    given = dict(result or {})
    descriptors = given.pop("descriptors", ())
    body = {"id": request_id, "result": given} if error is None else {"id": request_id} | error.to_dict()
    message = json.dumps(body).encode()
    if descriptors:
        try:
            socket.send_fds(channel, [message], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    else:
        channel.send(message)


def log(event: str, **fields: Any) -> None:
    line = json.dumps({"timestamp": now(), "logger": "helper", "event": event, **fields})
    with suppress(OSError):  # a full disk must not end what is told of
        print(line, file=sys.stderr, flush=True)
