"""How an execution's end is told: exit codes, signals, and whose doing it was.

Precedence: the node's timeout, then the kernel's kill for memory, then a signal. A command that a shell could not have
run either is a result (127, 126) with a line on stderr; everything else that stops a start is an error of the request.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any

from bellglass.errors import BellglassError, InternalError, InvalidCommand, LimitExceeded
from bellglass.node.executions.spec import ExecutionSpec
from bellglass.wire.guest import GuestExit, GuestFailure

KILLED = 128 + int(signal.SIGKILL)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `SIG42` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def decide(told: GuestExit | None, *, timed_out: bool, oom_kills: int, overlapped: bool) -> dict[str, Any]:
    """The fields of the record. `told` is None for a tree that the node killed and whose end the agent never told."""
    number = told.signal if told is not None else int(signal.SIGKILL)
    code = 128 + number if number is not None else told.exit_code if told is not None else KILLED
    killed = code == KILLED
    oom = oom_kills > 0 and not timed_out and (killed or (code != 0 and not overlapped))
    if timed_out:
        number, code = int(signal.SIGKILL), KILLED
    return {
        "exit_code": code,
        "signal": signal_name(number) if number is not None else None,
        "timed_out": timed_out,
        "oom_killed": oom,
        "oom_ambiguous": oom and overlapped,
        "user_cpu_s": told.user_cpu_us / 1e6 if told is not None else None,
        "system_cpu_s": told.system_cpu_us / 1e6 if told is not None else None,
    }


def shell_code(failure: GuestFailure) -> int | None:
    """127 or 126 for a program that can't be executed, None for a failure of another kind."""
    if failure.stage != "exec" or failure.errno == errno.E2BIG:
        return None
    return 127 if failure.errno == errno.ENOENT else 126


def shell_message(program: str, failure: GuestFailure) -> bytes:
    """The line on stderr: `bellglass: nosuchcmd: not found`."""
    why = {errno.ENOENT: "not found", errno.EACCES: "permission denied", errno.ENOEXEC: "cannot execute"}
    text = why.get(failure.errno) or os.strerror(failure.errno).lower()
    return f"bellglass: {program[:4096]}: {text}\n".encode("utf-8", "surrogateescape")


def start_error(failure: GuestFailure, spec: ExecutionSpec) -> BellglassError:
    """The error of a start that failed before the program."""
    reason = os.strerror(failure.errno).lower() if failure.errno else failure.message
    match failure.stage:
        case "chdir":
            return InvalidCommand(
                f"cwd: {spec.cwd!r}: {reason}",
                hint="name a folder that exists and that the user may enter",
                details={"field": "cwd", "errno": failure.errno},
            )
        case "user":
            return InvalidCommand(
                f"user: {spec.user!r}: {failure.message or reason}",
                hint="give a name of the sandbox's /etc/passwd, or a number",
                details={"field": "user"},
            )
        case "terminal":
            return LimitExceeded(
                f"the sandbox gives no terminal: {reason}",
                hint="end programs that hold terminals, and see that /dev/ptmx and /dev/pts are as they were",
            )
        case "exec":
            return InvalidCommand(
                "the command and its environment are too long for the kernel",
                hint="write it to a file in the sandbox and run that",
                details={"field": "command"},
            )
        case "fork" if failure.errno in (errno.EAGAIN, errno.ENOMEM):
            what = "processes (pids)" if failure.errno == errno.EAGAIN else "memory"
            return LimitExceeded(
                f"the sandbox's {what} are used up", hint="end what runs in it, or create it with more"
            )
        case "limit":
            return LimitExceeded(f"the agent refused the start: {failure.message}", hint="end what runs in the sandbox")
        case _:
            return InternalError(f"the command could not be started: {failure.stage}: {failure.message or reason}")
