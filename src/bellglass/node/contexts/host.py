"""The kernel host: the program of the `interpreter` template that holds one kernel and speaks JSON lines.

It is started as an ordinary execution, detached and with standard input open, so it outlives the node. What it writes
is the sandbox's word and may be an attacker's; what is read of it, and how, is lines.py's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bellglass.node.executions.spec import ExecutionSpec

PROGRAM = "/opt/bellglass/interpreter/host"
TAG = "context:"
"""Executions of hosts have this and the context's id as their tag."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the server settles anew for each start of a host: the sandbox's defaults and its environment, which is kept
    nowhere."""

    cwd: str
    user: str
    env: dict[str, str]
    check_disk: Callable[[], None]
    """Raises NoCapacity when the host's disk is too full for a new execution."""


def execution(execution_id: str, context_id: str, language: str, cwd: str, around: Surroundings) -> ExecutionSpec:
    argv = (PROGRAM, "--language", language, "--cwd", cwd)
    digest = hashlib.sha256(json.dumps([argv, around.user, around.env], sort_keys=True).encode()).hexdigest()
    return ExecutionSpec(
        id=execution_id,
        command=list(argv),
        argv=argv,
        env=around.env,
        cwd=cwd,
        user=around.user,
        timeout_s=None,
        stdin=None,
        stdin_open=True,
        detach=True,
        digest=digest,
        tag=f"{TAG}{context_id}",
    )


def run_line(run_id: str, code: str, env: dict[str, str]) -> bytes:
    return _line({"op": "run", "run": run_id, "code": code, "env": env})


def interrupt_line() -> bytes:
    return _line({"op": "interrupt"})


def _line(request: dict[str, Any]) -> bytes:
    return json.dumps(request, separators=(",", ":")).encode("ascii") + b"\n"
