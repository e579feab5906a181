"""A sandbox, from the body of a create to what the API shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from bellglass.model.network import Network, check_known
from bellglass.model.ports import Visibility
from bellglass.model.values import DEFAULT_CPUS, DEFAULT_DISK, DEFAULT_LIFETIME, DEFAULT_MEMORY, DEFAULT_PIDS
from bellglass.record import Record


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
    network: Network = "deny"
    identity: bool = True
    """Whether programs inside may call the API as the sandbox itself: read it, publish its ports as private."""
    auto_publish: Visibility | None = None
    """Every port is published like this when it is visited for the first time and something listens there. None: only
    what is published by name."""
    auto_publish_host: str | None = None
    """The `host_header` of ports that are published so; `${PORT}` in it stands for the port. Goes with
    `auto_publish`."""
    auto_publish_tls: list[int] = dataclasses.field(default_factory=list)
    """Of such ports those whose programs speak TLS alone."""
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
    network: Network = "deny"
    network_generation: int = 1
    """Counts the changes of the network; 0 in a machine that no sandbox has claimed yet."""
    identity: bool = True

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """A network that a later release wrote, in ways that this one does not know, is "deny"."""
        network = data.get("network")
        try:
            if isinstance(network, Mapping):
                check_known(network)
        except ValueError:
            data = {**data, "network": "deny"}
        return super(SandboxSpec, cls).from_json(data)


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
    network: Network
    network_generation: int = 1
    identity: bool = True
    auto_publish: str | None = None
    auto_publish_host: str | None = None
    auto_publish_tls: list[int] = dataclasses.field(default_factory=list)
    node: str | None
    generation: int
    created_at: str
    started_at: str | None
    ended_at: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSandbox(Record):
    """The body of a PATCH; labels are replaced as a whole. When it ends is said in one of three ways."""

    labels: dict[str, str] | None = None
    lifetime: int | float | str | None = None
    """Counted anew from now; may be shorter than what was left."""
    keep_for: int | float | str | None = None
    """It lives at least so long from now: never shortens."""
    expires_at: str | None = None
    """At this time (RFC 3339); at once for one that has passed."""
    idle_timeout: int | float | str | None = None
