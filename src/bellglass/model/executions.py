"""An execution: the body that starts one, its record, its buffered answer."""

from __future__ import annotations

import dataclasses

from bellglass.model.sandboxes import InputFile
from bellglass.record import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terminal(Record):
    """The size of a terminal in characters, each 1 to 65535."""

    cols: int
    rows: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateExecution(Record):
    """The body of an execution: `command` is an argv list (no shell) or a string for `/bin/bash -c` (`/bin/sh` where
    there is none)."""

    command: list[str] | str
    id: str | None = None
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    cwd: str | None = None
    """Relative paths start at the sandbox's workdir, which is the default."""
    user: str | None = None
    timeout: int | float | str | None = None
    """Default for a waiting execution 300 s, at most 600 s; none for a detached one."""
    stdin: str | InputFile | None = None
    """All of standard input; without it and without stdin_open it is /dev/null."""
    stdin_open: bool = False
    """Standard input comes by POST .../stdin and ends there with `eof=true`."""
    detach: bool = False
    """Answer 201 with the record at once; output stays in the log."""
    tag: str | None = None
    """A name to find it by, at most 256 bytes. Nothing keeps two from having the same."""
    terminal: Terminal | None = None
    """Give it a terminal of this size in place of pipes: all output is `stdout`, input comes as with stdin_open and has
    no end, TERM is xterm-256color if `env` has none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Execution(Record):
    """An execution's record. `exit_code` is 128 + signal for one that was killed; `signal` is its name ("SIGKILL")."""

    id: str
    sandbox_id: str
    state: str
    """`running`, `exited`, or `lost` (its sandbox ended first)."""
    command: list[str] | str
    cwd: str
    user: str
    timeout_s: float | None
    detached: bool
    tag: str | None = None
    pid: int | None = None
    """Of its first process, as it is seen inside the sandbox."""
    terminal: Terminal | None = None
    """The size of its terminal as it was last set; null without one."""
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    oom_killed: bool = False
    oom_ambiguous: bool = False
    """True where another execution ran at the time of the kill, so that it may have been that one's."""
    truncated: bool = False
    """Output was left out: of the log's ring, or of the buffered answer's stdout and stderr."""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    output_bytes: int = 0
    """The end of the combined log: the offset at which the next byte will lie."""
    user_cpu_s: float | None = None
    system_cpu_s: float | None = None
    started_at: str | None = None
    ended_at: str | None = None
    duration_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult(Record):
    """A buffered answer: the record, and of each stream the first and last 512 KiB. Where the bytes are not UTF-8
    `stdout` holds replacement characters and `stdout_b64` the exact bytes."""

    execution: Execution
    stdout: str
    stderr: str
    stdout_b64: str | None = None
    stderr_b64: str | None = None
    stdout_omitted_bytes: int = 0
    stderr_omitted_bytes: int = 0
