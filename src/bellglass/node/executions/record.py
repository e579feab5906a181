"""The record of an execution, as JSON: a model.Execution, written out since it is made thrice in each short command."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bellglass.node.executions.log import ExecutionLog
from bellglass.node.executions.spec import ExecutionSpec
from bellglass.wire.guest import STDERR, STDOUT

log = logging.getLogger("bellglass.executions")


def render(
    sandbox_id: str,
    spec: ExecutionSpec,
    output: ExecutionLog,
    *,
    state: str,
    pid: int | None,
    started_at: float,
    terminal: tuple[int, int] | None,
) -> dict[str, Any]:
    return {
        "id": spec.id,
        "sandbox_id": sandbox_id,
        "state": state,
        "command": spec.command,
        "cwd": spec.cwd,
        "user": spec.user,
        "timeout_s": spec.timeout_s,
        "detached": spec.detach,
        "tag": spec.tag,
        "pid": pid,
        "terminal": None if terminal is None else {"cols": terminal[0], "rows": terminal[1]},
        "exit_code": None,
        "signal": None,
        "timed_out": False,
        "oom_killed": False,
        "oom_ambiguous": False,
        "truncated": output.truncated,
        "stdout_bytes": output.stream_bytes[STDOUT],
        "stderr_bytes": output.stream_bytes[STDERR],
        "output_bytes": output.total_bytes,
        "user_cpu_s": None,
        "system_cpu_s": None,
        "started_at": rfc3339(started_at),
        "ended_at": None,
        "duration_s": None,
    }


def lost(running: dict[str, Any], folder: Path, *, ended_at: str | None) -> dict[str, Any]:
    """The record of an execution that went down with its sandbox unwatched: its output is what its log has."""
    known: dict[str, Any] = {"state": "lost", "ended_at": ended_at}
    try:
        output = ExecutionLog.reopen(folder, running["id"], 0)
    except (OSError, ValueError) as error:  # a host that lost power may leave a torn file behind
        log.warning("the log of execution %s can't be read: %s", running["id"], error)
        return running | known
    known["truncated"] = output.truncated
    known["stdout_bytes"], known["stderr_bytes"] = output.stream_bytes[STDOUT], output.stream_bytes[STDERR]
    known["output_bytes"] = output.total_bytes
    return running | known


def rfc3339(moment: float) -> str:
    """As model.format_time, without strftime, which costs ten times as much."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
