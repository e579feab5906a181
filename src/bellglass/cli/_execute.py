"""Running a command for `run` and `exec`: its bytes go through as they come, its exit code becomes ours.

Standard input is passed on only with `-i`: a pipe that happens to be open must not keep a command waiting. It is read
from the descriptor itself, since a thread that sits in sys.stdin's lock would stop the interpreter from ending.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from bellglass.cli._common import plain, print_json
from bellglass.errors import BellglassError, InvalidCommand
from bellglass.sdk._commands import STDIN_PIECE
from bellglass.sdk._commands import command as make_command
from bellglass.sdk._results import ExecResult, OutputChunk
from bellglass.sdk._sync.box import Box
from bellglass.sdk._sync.executions import Execution, run


def own_stdin() -> Iterator[bytes]:
    while piece := os.read(0, STDIN_PIECE):
        yield piece


def execute(
    box: Box,
    words: list[str],
    *,
    interactive: bool,
    as_json: bool,
    shell: bool,
    env: dict[str, str],
    cwd: str | None,
    user: str | None,
    timeout: str | None,
) -> int:
    """Run it to its end; ctrl-c and a reader that goes away kill it. Returns the exit code for ours."""
    if not words:
        raise InvalidCommand("command: there is none", hint="it goes after --, as in `-- python3 main.py`")
    planned = make_command(
        " ".join(words) if shell else words,
        env=env,
        cwd=cwd,
        user=user,
        timeout=timeout,
        stdin=own_stdin() if interactive else None,
    )
    try:
        result = run(box._transport, box.id, planned, create=True, on_chunk=None if as_json else _print)
    except (KeyboardInterrupt, BrokenPipeError):  # nobody reads on: `| head`
        _kill(box, planned.id)
        raise
    if as_json:
        print_json(as_document(result))
    elif result.timed_out or result.oom_killed:
        what = "ran into its timeout (--timeout sets another)" if result.timed_out else "was killed: out of memory"
        print(f"bellglass: the command {what}", file=sys.stderr)
    return result.exit_code


def _kill(box: Box, execution_id: str) -> None:
    try:
        Execution(box._transport, box.id, execution_id).kill()
    except BellglassError as error:
        print(f"bellglass: it could not be killed: {plain(error)}", file=sys.stderr)


def _print(chunk: OutputChunk) -> None:
    if chunk.stream == "skipped":
        print(f"bellglass: {chunk.skipped_bytes} bytes of output were lost", file=sys.stderr)
        return
    out = sys.stdout.buffer if chunk.stream == "stdout" else sys.stderr.buffer
    out.write(chunk.data)
    out.flush()


def as_document(result: ExecResult) -> dict[str, Any]:
    return {
        "execution_id": result.execution_id,
        "ok": result.ok,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "timed_out": result.timed_out,
        "oom_killed": result.oom_killed,
        "truncated": result.truncated,
        "duration_s": result.duration_s,
        "stdout": result.stdout,
        "stderr": result.stderr,
    }
