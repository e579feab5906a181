"""How an execution starts: the START frames, and how long the agent has to say that the program runs."""

from __future__ import annotations

import time

from bellglass.node.executions.host import Host
from bellglass.node.executions.spec import ExecutionSpec
from bellglass.wire import guest
from bellglass.wire.guest import StartFlag

START_S = 30.0


def frames(stream_id: int, spec: ExecutionSpec, *, default_cwd: str, stdin: bool, descriptor: bool) -> list[bytes]:
    """`stdin`: standard input is a pipe. `descriptor`: that of the execution's cgroup.procs goes with the first."""
    flags = StartFlag.USER_ENV
    if stdin:
        flags |= StartFlag.STDIN_OPEN
    if spec.cwd == default_cwd:
        flags |= StartFlag.CREATE_CWD  # a program that removed its workdir must not end all later ones
    return guest.encode_start(
        stream_id,
        argv=spec.argv,
        env=spec.env,
        cwd=spec.cwd,
        user=spec.user,
        flags=flags,
        execution_id=spec.id,
        descriptor=descriptor,
        terminal=spec.terminal,
    )


def extra_s(host: Host) -> float:
    """How much longer a start may take that stood still before its first instruction: all of its time, counted from the
    thaw. 0.0: it had that."""
    if host.frozen:
        return START_S
    return max(START_S - (time.monotonic() - host.thawed_at), 0.0)
