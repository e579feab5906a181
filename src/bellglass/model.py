"""The records that the API takes and gives, shared by server, node, SDK and CLI.

Standard library only. Each is a frozen dataclass that also serves as a pydantic body: see record.py.

Times in records are RFC 3339 strings in UTC; sizes are bytes; durations are seconds.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from bellglass.record import Record as Record


class State(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


class TerminationReason(StrEnum):
    """Why a sandbox is no more. `user`: deleted by its owner; `failed`: it never started or its machine died."""

    USER = "user"
    LIFETIME = "lifetime"
    IDLE = "idle"
    OOM = "oom"
    FAILED = "failed"
    NODE_LOST = "node_lost"


class Tier(StrEnum):
    """How strong the boundary is, weakest first; `microvm-emulated` stands outside of the order."""

    PROCESS = "process"
    CONTAINER = "container"
    GVISOR = "gvisor"
    MICROVM = "microvm"
    MICROVM_EMULATED = "microvm-emulated"


TIER_ORDER = (Tier.PROCESS, Tier.CONTAINER, Tier.GVISOR, Tier.MICROVM)

DEFAULT_CPUS = 2.0
DEFAULT_MEMORY = "4GiB"
DEFAULT_DISK = "10GiB"
DEFAULT_PIDS = 512
DEFAULT_LIFETIME = "10m"
DEFAULT_EXEC_TIMEOUT_S = 300.0
MAX_EXEC_TIMEOUT_S = 600.0
MAX_INPUTS_BYTES = 8 * 1024 * 1024
MAX_STDIN_BYTES = 512 * 1024


def now() -> str:
    """The present as RFC 3339 in UTC, with microseconds."""
    return format_time(datetime.now(UTC))


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputFile(Record):
    """A file under /inputs: its `text`, or its bytes as base64."""

    text: str | None = None
    b64: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreateSandbox(Record):
    """The body of a create. Sizes are bytes or "512MiB", times seconds or "15m"; what is left out gets its default."""

    template: str = "base"
    name: str | None = None
    owner: str | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    inputs: dict[str, InputFile] = dataclasses.field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    cpus: float = DEFAULT_CPUS
    memory: int | float | str = DEFAULT_MEMORY
    disk: int | float | str = DEFAULT_DISK
    pids: int = DEFAULT_PIDS
    lifetime: int | float | str = DEFAULT_LIFETIME
    idle_timeout: int | float | str | None = None
    isolation: str | None = None
    at_least: str | None = None
    network: Literal["deny"] | str = "deny"
    get_or_create: bool = False
    """With `name`: answer the running sandbox of that name if there is one (200) instead of 409."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec(Record):
    """A create with every value settled: what the server stores and the node starts."""

    template: str
    template_digest: str
    env: dict[str, str]
    user: str
    workdir: str
    cpus: float
    memory_bytes: int
    disk_bytes: int
    inodes: int
    pids: int
    lifetime_s: float
    idle_timeout_s: float | None
    tier: str
    network: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox(Record):
    """A sandbox as the API shows it."""

    id: str
    state: str
    termination_reason: str | None
    message: str | None
    """For `failed`: what went wrong, in a sentence."""
    template: str
    template_digest: str
    name: str | None
    owner: str | None
    labels: dict[str, str]
    env: dict[str, str]
    user: str
    workdir: str
    cpus: float
    memory_bytes: int
    disk_bytes: int
    inodes: int
    pids: int
    lifetime_s: float
    idle_timeout_s: float | None
    expires_at: str | None
    tier: str
    runtime: str | None
    runtime_version: str | None
    network: str
    node: str | None
    generation: int
    created_at: str
    started_at: str | None
    ended_at: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSandbox(Record):
    """The body of a PATCH: `lifetime` counts anew from now; labels are replaced as a whole."""

    labels: dict[str, str] | None = None
    lifetime: int | float | str | None = None
    idle_timeout: int | float | str | None = None


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
    pid: int | None = None
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo(Record):
    """One path inside a sandbox, as its own kernel describes it."""

    path: str
    name: str
    type: str
    """`file dir symlink fifo socket char block`."""
    size: int
    mode: str
    """Octal, four digits: "0644"."""
    uid: int
    gid: int
    user: str
    group: str
    mtime: str
    allocated_bytes: int
    target: str | None = None
    sha256: str | None = None
    """Of the bytes that were written; only in the answer to a write."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierReport(Record):
    """What a node can do on one tier, and if it can't, why and what would bring it."""

    tier: str
    runtime: str
    version: str | None
    usable: bool
    reason: str | None = None
    hint: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInfo(Record):
    name: str
    digest: str
    env: dict[str, str]
    user: str
    workdir: str
    size_bytes: int
    built_at: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PutPool(Record):
    """The body of a pool's PUT: how many machines are to be ready, and their shape, with the defaults of a create."""

    size: int
    ceiling: int | None = None
    """No machine is made while so many of the pool exist, sandboxes that were claimed from it counted. None: no bound
    but the node's capacity."""
    cpus: float = DEFAULT_CPUS
    memory: int | float | str = DEFAULT_MEMORY
    disk: int | float | str = DEFAULT_DISK
    pids: int = DEFAULT_PIDS
    isolation: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus(Record):
    """What the node has of a pool now. Machines are `filling` while they are made, `taken` between a create's promise
    and its claim; `claimed` ones are sandboxes that were members."""

    template_digest: str | None
    ready: int
    filling: int
    taken: int
    draining: int
    claimed: int
    hits: int
    misses: dict[str, int]
    """Creates of this template that started cold, by reason: `empty shape template inputs died`."""
    counted_since: str
    """When the counts of hits and misses began: they are kept until the node stops."""
    problem: str | None
    """Why the last refill was not made."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Record):
    """Machines of one template that the node keeps ready. `status` is None while the node is out of reach."""

    template: str
    size: int
    ceiling: int | None
    cpus: float
    memory_bytes: int
    disk_bytes: int
    inodes: int
    pids: int
    tier: str
    created_at: str
    updated_at: str
    status: PoolStatus | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Project(Record):
    id: str
    name: str
    created_at: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Record):
    """`used` of at most `most`; `own` is false where the project has the installation's default."""

    most: int
    used: int
    own: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLimits(Record):
    """What a project may have at once. Sandboxes count from the start of their create until all is dead."""

    project_id: str
    project_name: str
    sandboxes: Limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(Record):
    """`secret` is there once, in the answer to the create."""

    id: str
    project_id: str
    project_name: str
    label: str | None
    created_at: str
    last_used_at: str | None
    revoked_at: str | None
    secret: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(Record):
    """A sandbox of the node that the database does not know. It stands still, and is removed at `removed_at`."""

    id: str
    project_id: str
    project_name: str | None
    """None: that project is unknown too."""
    state: str
    """`running`: its processes stand still; `ended`: its disk is all that is left."""
    template: str
    name: str | None
    owner: str | None
    disk_bytes: int
    quarantined_at: str
    removed_at: str
