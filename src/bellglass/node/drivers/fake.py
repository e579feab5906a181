"""A driver without isolation: the real agent as an ordinary process, for tests and for failures on order.

Commands run as the host's own users in a scratch folder, so it is for trusted commands only. What it adds is faults: a
JSON file `<data_dir>/faults.json`, read at each step, or `FakeDriver.faults`:

    {"create": "NoCapacity" | "SandboxFailed" | "NotSupported",   fail the create with that error
     "create_delay_s": 0.5,                                       take that long
     "connect": "hang",                                           no link ever
     "drop_link_after_bytes": 4096,                               cut each link after so many bytes from the agent
     "die_after_s": 1.0, "die_cause": "oom",                      the machine dies by itself
     "destroy_delay_s": 0.5, "recover": "gone",                   a slow end; nothing to recover
     "disk": "gone",                                              a dead machine has left no disk
     "undying_groups": true, "oom_kills": 1,                      a tree that outlives its kill; memory kills so far
     "unwritten_bytes": 4096}                                     what is still on the way to the disk

Without cgroups an execution's tree is its descendants and its session; as root, real cgroups of the unified mount.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bellglass import __version__, errors
from bellglass.model import Tier, TierReport
from bellglass.node.drivers.base import FoundMachine, Groups, MachineSpec
from bellglass.node.drivers.fake_groups import CgroupTrees, ProcessTrees, alive, start_ticks
from bellglass.node.drivers.fake_relay import Relay

if TYPE_CHECKING:
    from bellglass.node.drivers import DriverContext

RUNTIME = "process"
DEATH_POLL_S = 0.02


class FakeDriver:
    name = "fake"
    tier = str(Tier.PROCESS)

    def __init__(self, root: Path, agent: Path, *, faults: Mapping[str, Any] | None = None) -> None:
        self.faults: dict[str, Any] = dict(faults or {})
        self._root = root
        self._agent = agent
        self._faults_file = root / "faults.json"
        self.handles: list[FakeHandle] = []

    @classmethod
    async def open(cls, context: DriverContext) -> Self:
        return cls(context.data.root, context.agent_binary)

    def fault(self, name: str, default: Any = None) -> Any:
        if name in self.faults:
            return self.faults[name]
        if self._faults_file.exists():
            return json.loads(self._faults_file.read_text()).get(name, default)
        return default

    async def probe(self) -> TierReport:
        return TierReport(
            tier=self.tier, runtime=RUNTIME, version=__version__, usable=True, reason="no isolation: tests only"
        )

    async def create(self, spec: MachineSpec) -> FakeHandle:
        await asyncio.sleep(self.fault("create_delay_s", 0))
        if failure := self.fault("create"):
            kind = {"NoCapacity": errors.NoCapacity, "NotSupported": errors.NotSupported}.get(
                failure, errors.SandboxFailed
            )
            raise kind("a fault on order", details={"resource": "uids"})
        # A unix socket's path has at most 107 bytes, and a data folder's may be long.
        scratch = Path(tempfile.mkdtemp(prefix="bgfake-"))
        handle = FakeHandle(self, spec.sandbox_id, scratch)
        self.handles.append(handle)
        try:
            handle.listen()
            handle.run_agent(self._agent)
        except BaseException:
            await handle.destroy()
            await handle.reclaim()
            raise
        return handle

    async def recover(self, sandbox_id: str, state: bytes) -> FakeHandle | None:
        if self.fault("recover") == "gone":
            return None
        known = json.loads(state)
        if start_ticks(known["pid"]) != known["start_ticks"]:
            return None
        handle = FakeHandle(self, sandbox_id, Path(known["scratch"]))
        self.handles.append(handle)
        handle.adopt(known["pid"])
        handle.listen()
        return handle

    async def reclaim_leftovers(self, sandbox_id: str) -> None:
        """The journal's state is gone with the handle: the scratch folder bears the id in a file."""
        for marker in Path(tempfile.gettempdir()).glob("bgfake-*/sandbox"):
            if marker.read_text() == sandbox_id:
                pid, ticks = json.loads((marker.parent / "agent").read_text())
                if alive(pid, ticks):
                    os.kill(pid, signal.SIGKILL)
                    await _dead(pid, ticks)
                if CgroupTrees.usable():
                    await CgroupTrees.kill_leftovers(sandbox_id)
                CgroupTrees.remove_all(sandbox_id)
                shutil.rmtree(marker.parent, ignore_errors=True)

    async def keep_disk(self, sandbox_id: str) -> bool:
        """The files are the host's own, and stay anyway."""
        await self.reclaim_leftovers(sandbox_id)
        return self.fault("disk") != "gone"

    async def find(self, known: Set[str]) -> list[FoundMachine]:
        return []

    async def close(self) -> None:
        for handle in self.handles:
            handle.hang_up()
        self.handles.clear()


class FakeHandle:
    runtime = RUNTIME
    runtime_version = __version__

    def __init__(self, driver: FakeDriver, sandbox_id: str, scratch: Path) -> None:
        self.sandbox_id = sandbox_id
        self.pid = 0
        self._driver = driver
        self._scratch = scratch
        self._listener: socket.socket | None = None
        self._relays: list[Relay] = []
        trees = CgroupTrees if CgroupTrees.usable() else ProcessTrees
        self.groups: Groups = trees(sandbox_id, driver.fault)
        (scratch / "sandbox").write_text(sandbox_id)

    def listen(self) -> None:
        path = self._scratch / "agent.sock"
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._listener.bind(str(path))
        self._listener.listen(4)

    def run_agent(self, agent: Path) -> None:
        # Not a child process object of the loop: it outlives this node, and a restarted one is not its parent either.
        log = os.open(self._scratch / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.pid = os.posix_spawn(
                agent,
                [str(agent), str(self._scratch / "agent.sock")],
                {"PATH": "/usr/bin:/bin"},
                file_actions=[(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)],
                setsid=True,
            )
        finally:
            os.close(log)
        self._start_ticks = start_ticks(self.pid)
        (self._scratch / "agent").write_text(json.dumps([self.pid, self._start_ticks]))

    def adopt(self, pid: int) -> None:
        self.pid, self._start_ticks = pid, start_ticks(pid)

    def state(self) -> bytes:
        return json.dumps(
            {"version": 1, "pid": self.pid, "start_ticks": self._start_ticks, "scratch": str(self._scratch)}
        ).encode()

    async def connect(self, deadline: float) -> socket.socket:
        loop = asyncio.get_running_loop()
        assert self._listener is not None
        try:
            async with asyncio.timeout_at(deadline):
                if self._driver.fault("connect") == "hang":
                    await asyncio.Event().wait()
                sock, _ = await loop.sock_accept(self._listener)
        except (TimeoutError, OSError) as error:
            raise errors.AgentLost(f"the agent did not dial: {error!r}") from error
        sock.setblocking(False)
        if limit := self._driver.fault("drop_link_after_bytes"):
            relay = Relay(sock, limit_bytes=limit)
            self._relays.append(relay)
            return relay.far_end
        return sock

    async def wait(self) -> str:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while alive(self.pid, self._start_ticks):
            if (after := self._driver.fault("die_after_s")) is not None and loop.time() - began >= after:
                os.kill(self.pid, signal.SIGKILL)
            await asyncio.sleep(DEATH_POLL_S)  # a fake: not worth a pidfd
        return str(self._driver.fault("die_cause", "exited"))

    async def destroy(self) -> None:
        await asyncio.sleep(self._driver.fault("destroy_delay_s", 0))
        await self.groups.kill_all()  # type: ignore[attr-defined]
        if self.pid and alive(self.pid, self._start_ticks):
            os.kill(self.pid, signal.SIGKILL)
            await _dead(self.pid, self._start_ticks)
        self.hang_up()

    def hang_up(self) -> None:
        for relay in self._relays:
            relay.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def reclaim(self) -> None:
        CgroupTrees.remove_all(self.sandbox_id)
        shutil.rmtree(self._scratch, ignore_errors=True)


async def _dead(pid: int, ticks: int | None) -> None:
    while alive(pid, ticks):  # noqa: ASYNC110 - a fake: not worth a pidfd
        await asyncio.sleep(0.001)
