"""The helper's loop: one thread that takes requests and forks a child for each, which does the work and answers.

So one operation may change its own namespaces and ids, and its crash is an error of that operation alone. Those of one
sandbox go one after the other, in the order in which they came: a reclaim must not overtake the lease before it.
The loop ends when the node's end of the socket closes, and its children with it: each step can be cut off, and the next
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bellglass.errors import BellglassError, InternalError, InvalidRequest
from bellglass.model import now
from bellglass.node.helper import kernel
from bellglass.node.helper.context import Context
from bellglass.node.helper.operations import Operation, parse

MAX_MESSAGE_BYTES = 65536
MAX_CHILDREN = 16
_SO_PEERCRED = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class _Request:
    id: int
    op: str
    operation: Operation
    fields: Mapping[str, Any]

    @property
    def sandbox_id(self) -> str | None:
        return self.fields.get("sandbox_id")


@dataclass(frozen=True, slots=True)
class _Child:
    request: _Request
    deadline: float


def serve(context: Context, channel: socket.socket) -> None:
    """Until the node is gone. Raises PermissionError when somebody else than its parent made the channel."""
    pid, uid, _ = _SO_PEERCRED.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _SO_PEERCRED.size))
    # The children's collector would write to every object that they share with this process, and so copy its memory.
    gc.collect()
    gc.freeze()
    # A socketpair tells who made it: the launcher, as root, before it became the node.
    if pid != os.getppid() or uid != 0:
        raise PermissionError(f"the channel was made by pid {pid}, uid {uid}, not by the launcher {os.getppid()}")
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # children then share these pages for longer
    children: dict[int, _Child] = {}
    waiting: list[_Request] = []
    while True:
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        if len(children) + len(waiting) < MAX_CHILDREN:
            poll.register(channel, select.POLLIN)
        ready = dict(poll.poll(_poll_ms(children)))
        if wake_read in ready:
            os.read(wake_read, 4096)
        _reap(channel, children)
        if channel.fileno() in ready:
            message = channel.recv(MAX_MESSAGE_BYTES)
            if not message:
                return
            if (request := _parse(channel, message)) is not None:
                waiting.append(request)
        _begin(context, channel, children, waiting)


def _parse(channel: socket.socket, message: bytes) -> _Request | None:
    """None for one that is refused, and was answered so."""
    request_id = -1
    try:
        request = json.loads(message)
        request_id = request["id"] if isinstance(request, dict) and type(request.get("id")) is int else -1
        operation, fields = parse(request)
        return _Request(request_id, request["op"], operation, fields)
    except (ValueError, RecursionError):
        _answer(channel, request_id, error=InvalidRequest("a request is JSON"))
    except InvalidRequest as error:
        log("refused", id=request_id, error=error.message)
        _answer(channel, request_id, error=error)
    return None


def _begin(context: Context, channel: socket.socket, children: dict[int, _Child], waiting: list[_Request]) -> None:
    """Fork for each that has no earlier one of its sandbox before it."""
    busy = {child.request.sandbox_id for child in children.values()} - {None}
    for request in list(waiting):
        if request.sandbox_id in busy:
            continue
        waiting.remove(request)
        if request.sandbox_id is not None:
            busy.add(request.sandbox_id)
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            gc.disable()
            kernel.die_with_parent(parent)
            _work(context, channel, request)
        children[pid] = _Child(request, time.monotonic() + request.operation.timeout_s)


def _work(context: Context, channel: socket.socket, request: _Request) -> None:
    """The child: act, answer, exit. It never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    began, code = time.monotonic(), 1
    op = request.op
    about = {"op": op, "sandbox_id": request.sandbox_id}
    try:
        result: Mapping[str, Any] = {}
        failure: BellglassError | None = None
        try:
            result = request.operation.act(context, request.fields)
        except BellglassError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - becomes a typed answer, with its traceback in the log
            traceback.print_exc()
            failure = InternalError(f"{op}: {type(error).__name__}: {error}")
        outcome: dict[str, Any] = {"error": failure.message} if failure is not None else {}
        if "profile_ms" in result:
            outcome["profile_ms"] = result["profile_ms"]
        elapsed_ms = round((time.monotonic() - began) * 1000, 1)
        log("done" if failure is None else "failed", **about, ms=elapsed_ms, **outcome)
        _answer(channel, request.id, result=result, error=failure)
        code = 0
    except BrokenPipeError:
        log("nobody to answer to", **about)
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into the loop
        traceback.print_exc()
    finally:
        with suppress(OSError):  # as in `log`
            sys.stderr.flush()
        os._exit(code)


def _reap(channel: socket.socket, children: dict[int, _Child]) -> None:
    for pid, child in children.items():
        if time.monotonic() > child.deadline:
            os.kill(pid, signal.SIGKILL)
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        # A pid that isn't here was a machine's first process: as a subreaper the helper inherits it from the runtime.
        known = children.pop(pid, None)
        if known is not None and status != 0:
            code = os.waitstatus_to_exitcode(status)
            op = known.request.op
            log("crashed", op=op, exit=code)
            _answer(channel, known.request.id, error=InternalError(f"{op} died ({code}): see the helper's log"))


def _answer(
    channel: socket.socket,
    request_id: int,
    *,
    result: Mapping[str, Any] | None = None,
    error: BellglassError | None = None,
) -> None:
    body = {"id": request_id, "result": result} if error is None else {"id": request_id} | error.to_dict()
    channel.send(json.dumps(body).encode())


def _poll_ms(children: Mapping[int, _Child]) -> float | None:
    if not children:
        return None
    return max(0.0, min(child.deadline for child in children.values()) - time.monotonic()) * 1000 + 1


def log(event: str, **fields: Any) -> None:
    line = json.dumps({"timestamp": now(), "logger": "helper", "event": event, **fields})
    with suppress(OSError):  # a full disk must not end what is told of
        print(line, file=sys.stderr, flush=True)
