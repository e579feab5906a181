"""An interpreter context: the body that makes one, its record, a run of code in it and the buffered answer of one."""

from __future__ import annotations

import dataclasses
from typing import Any

from bellglass.record import Record

LANGUAGES = ("python", "javascript", "bash")
DEFAULT_RUN_TIMEOUT_S = 300.0
MAX_RUN_TIMEOUT_S = 24 * 3600.0
MAX_CODE_BYTES = 4 * 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateContext(Record):
    """The body of a context: one kernel of `language` (`python`, `javascript`, `bash`) for life."""

    language: str = "python"
    cwd: str | None = None
    """Relative paths start at the sandbox's workdir, which is the default."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context(Record):
    """A context's record. `id` is the language's name for a default context, which its first run makes."""

    id: str
    sandbox_id: str
    language: str
    cwd: str
    user: str
    state: str
    """`ready`, `busy` (code runs), or `stopped`: its kernel is gone, and the next run gets a fresh one."""
    execution_id: str | None
    """The execution that holds the kernel."""
    created_at: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunCode(Record):
    """A run of code. `env` is there for this run alone."""

    code: str
    id: str | None = None
    """A ULID. Sent again with the same id the same run goes on; no code runs twice under one id."""
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    timeout: int | float | str | None = None
    """Default 300 s, at most 24 h. Then the code is interrupted, and killed where it does not stop."""
    after: int | None = None
    """Of a run that is sent again: the `offset` of the last line that came."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Record):
    """The buffered answer of a run. Of each stream the first and last 512 KiB, of results 4 MiB in all."""

    run_id: str
    status: str
    """`ok`, or `error`: the code raised."""
    execution_count: int | None
    timed_out: bool
    interrupted: bool
    state_lost: bool
    """The kernel is another one than that of the run before: variables are gone."""
    duration_s: float
    stdout: str
    stderr: str
    truncated: bool
    """Output or whole results were left out."""
    results: list[dict[str, Any]]
    """`main` (the value of the last expression), `data` by MIME type, `dropped`: sizes of what was left out of it."""
    error: dict[str, str] | None
    """`name`, `value` and `traceback` of what the code raised."""
