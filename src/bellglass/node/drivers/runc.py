"""The container tier: OCI machines on idmapped layers, by runc (or crun), through the root helper.

The node's part is small and without privilege: it listens for the agent, watches the first process by a pidfd, kills by
the cgroup that the helper gave it, and asks the helper to start and to reclaim. A machine's state is its first
process (pid and start time) and the index of its uid range; all else follows from the sandbox's id.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Collection, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from bellglass import faultpoints
from bellglass.datadir import DataDir
from bellglass.errors import AgentLost, BellglassError, InternalError, NotSupported
from bellglass.model import Tier, TierReport
from bellglass.node.cgroups import MachineGroups, wait_group_empty
from bellglass.node.drivers import DriverContext
from bellglass.node.drivers.base import LISTENERS, FoundMachine, Groups, Handle, MachineSpec, Template, Usage
from bellglass.node.drivers.machine_state import MachineState, ended, open_process
from bellglass.node.helper import cgroup
from bellglass.node.helper.client import HelperClient
from bellglass.node.helper.context import DISK
from bellglass.node.helper.uids import first_uid
from bellglass.node.image import template as templates

SOCKET_NAME = "agent.sock"
PROBE_ID = "sb" + "probe".ljust(20, "a")
_BACKLOG = 8
_STRANGER_PAUSE_S = 0.05
_KILL_S = 10.0
_HASTEN_AFTER_S = 0.1
_PROBE_S = 10.0
_PEERCRED = struct.Struct("iII")


class RuncHandle:
    def __init__(self, driver: RuncDriver, sandbox_id: str, state: MachineState, listener: socket.socket) -> None:
        self.sandbox_id = sandbox_id
        self.runtime = driver.name
        self.runtime_version = state.runtime_version
        self._groups = MachineGroups(driver.layout, driver.installation, sandbox_id)
        self.groups: Groups | None = self._groups
        self._driver = driver
        self._state = state
        self._listener = listener
        self._disk = driver.disk_file(sandbox_id)

    def state(self) -> bytes:
        return self._state.encode()

    async def connect(self, deadline: float) -> socket.socket:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    link, _ = await loop.sock_accept(self._listener)
            except (TimeoutError, OSError) as error:
                raise AgentLost(f"the agent of {self.sandbox_id} does not dial: {error}") from error
            _, uid, _ = _PEERCRED.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
            if uid == first_uid(self._state.range):
                return link
            link.close()
            # Programs inside may dial as fast as they like, and taking each costs the loop that is everybody's.
            await asyncio.sleep(_STRANGER_PAUSE_S)

    async def listeners(self, names: Collection[str] = LISTENERS) -> dict[str, socket.socket]:
        return await self._driver.listeners(self.sandbox_id, names)

    def close_unused(self) -> None:
        self._driver.close_listeners(self.sandbox_id)

    def cpu_ns(self) -> int:
        return self._groups.cpu_ns()

    def usage(self) -> Usage:
        return Usage(*self._groups.memory_bytes(), self._disk.stat().st_blocks * 512)

    async def wait(self) -> str:
        """`oom` is told from the machine's own count: only a parent learns how a process has ended."""
        await ended(self._state)
        return "oom" if self._groups.oom_killed_lately() else "exited"

    async def destroy(self) -> None:
        self._driver.close_listeners(self.sandbox_id)
        deadline = asyncio.get_running_loop().time() + _KILL_S
        cgroup.kill(self._groups.root)
        try:
            async with asyncio.timeout(_HASTEN_AFTER_S):
                await ended(self._state)
        except TimeoutError:
            with suppress(BellglassError):  # it ends without that too, only later
                await self.hasten_end()
        try:
            async with asyncio.timeout_at(deadline):
                # The first process of a pid namespace ends last, when all others have been collected.
                await ended(self._state)
        except TimeoutError:
            raise self._undead() from None
        if not await wait_group_empty(self._groups.root, deadline):
            raise self._undead()

    async def hasten_end(self) -> None:
        """SIGKILL, and all the CPU time that dying takes. Raises InternalError when the helper is gone."""
        await self._driver.hasten_end(self.sandbox_id)

    def _undead(self) -> InternalError:
        return InternalError(f"processes of {self.sandbox_id} are still alive {_KILL_S:g} s after SIGKILL")

    async def reclaim(self) -> None:
        await self._driver.reclaim_leftovers(self.sandbox_id)


class RuncDriver:
    name = "runc"
    tier: str = Tier.CONTAINER

    def __init__(self, data: DataDir, helper: HelperClient, *, installation: str, templates_dir: Path) -> None:
        """Takes the helper's client over: `close` closes it."""
        self.installation = installation
        self.layout = cgroup.layout()
        self.helper_pid: int | None = None
        self._data = data
        self._helper = helper
        self._templates_dir = templates_dir
        self._listeners: dict[str, socket.socket] = {}
        self._unused: dict[str, dict[str, socket.socket]] = {}
        """What a create has opened in a machine's gateway, until somebody takes it."""
        self._host: dict[str, Any] = {}
        self._report: TierReport | None = None
        self._proved = False
        """A machine of an earlier node runs: no other has to be started to see that it can."""
        self._probing = asyncio.Lock()

    @classmethod
    async def open(cls, context: DriverContext) -> Self:
        """Raises NotSupported without a helper or on a host without usable cgroups, InternalError if it is gone."""
        if context.helper_fd is None:
            raise NotSupported(
                f"the {cls.name} driver needs the root helper", hint="run `bellglass up` as root, or node.driver = fake"
            )
        helper = HelperClient.from_fd(context.helper_fd, context.on_helper_lost)
        try:
            driver = cls(context.data, helper, installation=context.installation, templates_dir=context.templates_dir)
            await driver._ask_host()
            # No journal knows the machine of a probe that a crash cut off.
            await driver.reclaim_leftovers(PROBE_ID)
        except BaseException:
            helper.close()
            raise
        return driver

    async def probe(self) -> TierReport:
        async with self._probing:
            if self._report is not None:
                return self._report
            report = await self._probe()
            if report.usable:
                self._report = report  # what is missing may come while the node runs
            return report

    async def create(self, spec: MachineSpec) -> Handle:
        version = (self._host or await self._ask_host())["version"]
        sandbox_id = spec.sandbox_id
        try:
            index = (await self._helper.call("lease_uids", sandbox_id=sandbox_id))["range"]
            faultpoints.reach("node.create.uids_leased")
            # Before the start, so that the agent's first dial finds it.
            listener = self._listen(sandbox_id)
            faultpoints.reach("node.create.listening")
            started = await self._helper.call(
                "start_machine",
                sandbox_id=sandbox_id,
                runtime=self.name,
                template_name=spec.template.name,
                template_digest=spec.template.digest,
                cpus=spec.cpus,
                cpu_ids=list(spec.cpu_ids),
                memory_bytes=spec.memory_bytes,
                disk_bytes=spec.disk_bytes,
                inodes=spec.inodes,
                pids=spec.pids,
                has_inputs=spec.has_inputs,
                has_network=spec.has_network,
                background=spec.background,
                reuse_disk=spec.reuse_disk,
            )
        except BaseException:
            await asyncio.shield(self.keep_disk(sandbox_id) if spec.reuse_disk else self.reclaim_leftovers(sandbox_id))
            raise
        state = MachineState(started["pid"], started["start_ticks"], index, version or "unknown")
        self._unused[sandbox_id] = _by_name(LISTENERS, started.get("descriptors", ()))
        return RuncHandle(self, sandbox_id, state, listener)

    async def recover(self, sandbox_id: str, state: bytes) -> Handle | None:
        known = MachineState.decode(state)
        pidfd = open_process(known)
        if pidfd is None:
            return None
        os.close(pidfd)
        groups = MachineGroups(self.layout, self.installation, sandbox_id)
        if not cgroup.is_populated(groups.root):
            return None
        handle = RuncHandle(self, sandbox_id, known, self._listen(sandbox_id))
        self._proved = True
        return handle

    async def listeners(self, sandbox_id: str, names: Collection[str]) -> dict[str, socket.socket]:
        """See HasNetwork."""
        unused = self._unused.get(sandbox_id, {})
        found = {name: unused.pop(name) for name in names if name in unused}
        if missing := [name for name in LISTENERS if name in names and name not in found]:
            try:
                answer = await self._helper.call("open_listeners", sandbox_id=sandbox_id, names=missing)
            except BaseException:
                _close(found)
                raise
            found |= _by_name(missing, answer["descriptors"])
        return found

    def disk_file(self, sandbox_id: str) -> Path:
        return self._data.sandbox_dir(sandbox_id) / DISK

    def close_listeners(self, sandbox_id: str) -> None:
        """Those that nobody has taken."""
        _close(self._unused.pop(sandbox_id, {}))

    async def raise_wall(self, *, exceptions: Sequence[str], dns: Sequence[str]) -> None:
        await self._helper.call("raise_wall", exceptions=list(exceptions), dns=list(dns))

    async def hasten_end(self, sandbox_id: str) -> None:
        await self._helper.call("hasten_end", sandbox_id=sandbox_id)

    async def reclaim_leftovers(self, sandbox_id: str) -> None:
        self._hang_up(sandbox_id)
        await self._helper.call("reclaim_machine", sandbox_id=sandbox_id)

    async def keep_disk(self, sandbox_id: str) -> bool:
        self._hang_up(sandbox_id)
        return bool((await self._helper.call("keep_disk", sandbox_id=sandbox_id))["kept"])

    async def find(self, known: Set[str]) -> list[FoundMachine]:
        found, after = [], ""
        while page := (await self._helper.call("list_machines", after=after))["ids"]:
            after = page[-1]
            for sandbox_id in set(page) - known - {PROBE_ID}:
                one = await self._helper.call("describe_machine", sandbox_id=sandbox_id)
                if not one["has_disk"] or one["spec"] is None:
                    await self.reclaim_leftovers(sandbox_id)
                    continue
                groups = MachineGroups(self.layout, self.installation, sandbox_id) if one["running"] else None
                found.append(FoundMachine(sandbox_id=sandbox_id, spec=one["spec"], groups=groups))
        return found

    def _hang_up(self, sandbox_id: str) -> None:
        self.close_listeners(sandbox_id)
        if (listener := self._listeners.pop(sandbox_id, None)) is not None:
            listener.close()

    async def renew_lxcfs(self) -> int:
        return int((await self._helper.call("renew_lxcfs"))["renewed"])

    async def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for sandbox_id in list(self._unused):
            self.close_listeners(sandbox_id)
        self._helper.close()

    def _listen(self, sandbox_id: str) -> socket.socket:
        """Only the sandbox's root and this node get into the folder, so the socket itself is open to all."""
        # By a descriptor: a socket's address holds 107 bytes, and the data folder may be far down.
        folder = os.open(self._data.agent_dir(sandbox_id), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with suppress(FileNotFoundError):
                os.unlink(SOCKET_NAME, dir_fd=folder)
            listener.bind(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
            os.chmod(SOCKET_NAME, 0o666, dir_fd=folder)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(folder)
        if (earlier := self._listeners.get(sandbox_id)) is not None:
            earlier.close()
        self._listeners[sandbox_id] = listener
        return listener

    async def _ask_host(self) -> dict[str, Any]:
        self._host = await self._helper.call("probe", runtime=self.name)
        self.helper_pid = self._host["helper_pid"]
        return self._host

    async def _probe(self) -> TierReport:
        try:
            if missing := (await self._ask_host())["missing"]:
                return self._refusal(missing[0]["reason"], missing[0]["hint"])
            found = templates.installed(self._templates_dir)
            if not found:
                return self._refusal(f"no template is built in {self._templates_dir}", "make template")
            if not self._proved:
                await self._try_machine(Template(found[0].name, found[0].digest, found[0].folder))
        except BellglassError as error:
            return self._refusal(f"a machine could not be started: {error.message}", error.hint)
        lacks_lxcfs = not self._host["lxcfs"]
        return TierReport(
            tier=self.tier,
            runtime=self.name,
            version=self._host["version"],
            usable=True,
            reason="lxcfs is not mounted: /proc shows the host's memory and CPUs" if lacks_lxcfs else None,
            hint="apt-get install lxcfs" if lacks_lxcfs else None,
        )

    def _refusal(self, reason: str, hint: str | None) -> TierReport:
        version = self._host.get("version")
        return TierReport(tier=self.tier, runtime=self.name, version=version, usable=False, reason=reason, hint=hint)

    async def _try_machine(self, template: Template) -> None:
        """Start the smallest machine, wait for its agent to dial, take it down."""
        spec = MachineSpec(
            sandbox_id=PROBE_ID,
            generation=1,
            template=template,
            cpus=1.0,
            cpu_ids=(min(os.sched_getaffinity(0)),),
            memory_bytes=128 * 2**20,
            disk_bytes=64 * 2**20,
            inodes=1024,
            pids=64,
            has_inputs=False,
        )
        handle = await self.create(spec)
        try:
            (await handle.connect(asyncio.get_running_loop().time() + _PROBE_S)).close()
            await handle.destroy()
        finally:
            await asyncio.shield(handle.reclaim())


class CrunDriver(RuncDriver):
    """The same machines by crun, on cgroup v2 only: it refuses hybrid hosts. Untested."""

    name = "crun"


def _by_name(names: Sequence[str], descriptors: Sequence[int]) -> dict[str, socket.socket]:
    if not descriptors:
        return {}
    return {name: socket.socket(fileno=fd) for name, fd in zip(names, descriptors, strict=True)}


def _close(listeners: dict[str, socket.socket]) -> None:
    while listeners:
        listeners.popitem()[1].close()
