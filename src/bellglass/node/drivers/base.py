"""The driver contract: bring a machine up, hand over a stream to its guest agent, take it down.

Exec, files, logs and limits are written once above it, so a driver is small. A driver is found by its name in
`drivers.DRIVERS`. Every driver, the fake one included, passes the same conformance suite (bellglass.testing).
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bellglass.model import TierReport


@dataclass(frozen=True, slots=True)
class Template:
    """A built template: its digest, and the folder `<templates_dir>/<name>-<digest[:16]>/` that holds `rootfs/`."""

    name: str
    digest: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """What to start. Ids and numbers only: a driver builds every path and argv itself."""

    sandbox_id: str
    generation: int
    template: Template
    cpus: float
    cpu_ids: tuple[int, ...]
    """The host's CPUs that the machine may run on; as many as `cpus`, rounded up."""
    memory_bytes: int
    disk_bytes: int
    inodes: int
    pids: int
    has_inputs: bool
    """`<data_dir>/node/inputs/<id>/` is to appear read-only under /inputs."""
    has_network: bool = True
    """By a driver that makes networks: a gateway, whose listeners HasNetwork answers. Else loopback alone."""
    background: bool = False
    """Nobody waits for it: its start is to take no processor from those somebody waits for."""
    reuse_disk: bool = False
    """On the disk that `keep_disk` kept. A create that fails leaves it; `keep_disk` takes all else down again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMachine:
    """A machine or a disk that is there, and that the journal does not know. `spec` has the fields of MachineSpec that
    are numbers, and `template_name` and `template_digest`. `groups`: of one that runs."""

    sandbox_id: str
    spec: dict[str, Any]
    groups: Groups | None


class Groups(Protocol):
    """The cgroups of a machine's executions, where the host can reach them (not in VMs, not under gVisor)."""

    def make(self, execution_id: str) -> int:
        """A group for one execution; answers a descriptor of its cgroup.procs, open for writing, O_CLOEXEC.
        The caller closes it."""

    def kill(self, execution_id: str) -> None:
        """SIGKILL to all in the group (`cgroup.kill`). A group that is gone is success."""

    async def wait_empty(self, execution_id: str, deadline: float) -> bool:
        """Until no process is left (True), or the loop time `deadline` has passed (False)."""

    def remove(self, execution_id: str) -> None:
        """rmdir of an empty group; gone is success. Raises OSError(EBUSY) while processes are in it."""

    def freeze(self, *, frozen: bool) -> None:
        """All executions' groups, never the agent's."""

    def not_frozen(self) -> list[str]:
        """The executions that were told to freeze and do not: they are inside of a long system call."""

    def unwritten_bytes(self) -> int:
        """What the machine has written, but the kernel not yet to its disk."""

    def executions(self) -> list[str]:
        """The executions that have a group."""

    def oom_kills(self) -> int:
        """How many processes of the machine the kernel has killed for memory since it started."""


class Handle(Protocol):
    """A machine that runs."""

    sandbox_id: str
    runtime: str
    runtime_version: str
    groups: Groups | None

    def state(self) -> bytes:
        """What `recover` needs to find the machine again: versioned and opaque, at most 64 KiB."""

    async def connect(self, deadline: float) -> socket.socket:
        """The next link to the guest agent: a connected non-blocking stream socket that the caller owns. The agent
        dials again whenever its link ends, so this can be called again. Raises AgentLost at the deadline (loop
        time)."""

    async def wait(self) -> str:
        """Until the machine is dead, by itself or not; answers what is known of the cause: `exited` or `oom`."""

    async def destroy(self) -> None:
        """Kill every process and return when they are dead; idempotent. Disks stay until `reclaim`."""

    async def reclaim(self) -> None:
        """Give back all that the machine had: mounts, loop devices, cgroups, uid range, disk, folders. Idempotent;
        safe after a crash at any point of create, destroy or an earlier reclaim."""


LISTENERS = ("proxy", "dns_udp", "dns_tcp", "identity")
"""What a sandbox can reach: everything by TCP, names, and the API as itself."""


@runtime_checkable
class HasNetwork(Protocol):
    """An ability of a handle whose machine has a gateway."""

    async def listeners(self, names: Collection[str] = LISTENERS) -> dict[str, socket.socket]:
        """Listening sockets inside of the gateway, by name; the caller owns them. They are made anew, but for the first
        time after a create: whoever had one of them before must be gone (InternalError). What nobody holds is refused
        to the sandbox. Raises NotFound when the machine has no network."""

    def close_unused(self) -> None:
        """What a create has opened and nobody has taken: a listener that is held takes connections that wait for an
        answer."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes that a machine has in use now. `memory_used` is what can't be given back; files that the kernel keeps in
    memory are `memory_cache`. `disk_used` is what its disk takes of the host's, metadata and journal too."""

    memory_used: int
    memory_cache: int
    disk_used: int


@runtime_checkable
class HasUsage(Protocol):
    """An ability of a handle whose machine the host can measure from outside. In any thread; raises OSError for a
    machine that ends just now."""

    def cpu_ns(self) -> int:
        """CPU time of all of its processes since it was started."""

    def usage(self) -> Usage:
        """Costs more than `cpu_ns`."""


@runtime_checkable
class RaisesWall(Protocol):
    """An ability of a driver with such handles."""

    async def raise_wall(self, *, exceptions: Sequence[str], dns: Sequence[str]) -> None:
        """What the uids of proxy and resolver may send from this host; before anything listens for them. `exceptions`:
        networks that the proxy may reach although the floor holds them, `dns`: addresses that it asks for names.
        Idempotent; replaces an earlier one."""


@runtime_checkable
class ReadsLxcfs(Protocol):
    """An ability of a driver whose machines have files of lxcfs mounted."""

    async def renew_lxcfs(self) -> int:
        """After lxcfs was started anew; answers how many running machines now read from it. Raises SandboxFailed."""


class Driver(Protocol):
    name: str
    tier: str

    async def probe(self) -> TierReport:
        """Really try: start the smallest thing that shows the tier works on this host."""

    async def create(self, spec: MachineSpec) -> Handle:
        """Start the machine; the agent may dial any moment. On failure nothing is left and the error is typed:
        NoCapacity, SandboxFailed, NotSupported."""

    async def recover(self, sandbox_id: str, state: bytes) -> Handle | None:
        """The running machine after a restart of the node, or None if it is dead (then `reclaim_leftovers`)."""

    async def reclaim_leftovers(self, sandbox_id: str) -> None:
        """`reclaim` for a machine of which no handle exists: a create that a crash cut off, or a dead one."""

    async def keep_disk(self, sandbox_id: str) -> bool:
        """`reclaim_leftovers`, but for the disk: whether there is one. Idempotent; it kills too."""

    async def find(self, known: Set[str]) -> list[FoundMachine]:
        """What is there beyond the known ids. What has no disk is half-made: that is given back at once."""

    async def close(self) -> None:
        """The node stops; machines go on."""
