"""A helper and a runc driver without the rest of the node, and a client of the guest agent that runs one command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bellglass import ids
from bellglass.datadir import DataDir, cache_dir
from bellglass.node.drivers import DriverContext
from bellglass.node.drivers.base import MachineSpec, Template
from bellglass.node.drivers.runc import RuncDriver
from bellglass.node.image import template as templates
from bellglass.testing.leaks import Scope
from bellglass.wire import guest
from bellglass.wire.frames import Frame, FrameReader
from bellglass.wire.guest import GuestType

NODE_UID = 64123
"""Any uid that nobody has; in most tests root plays the node, which then only shows as an owner."""
PROXY_UID, RESOLVER_UID, EGRESS_GID = 64124, 64125, 64127
MIB = 2**20
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class Result:
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str


class Agent:
    """One link to the guest agent."""

    def __init__(self, link: socket.socket, groups: Any) -> None:
        link.settimeout(60)
        self.link = link
        self.groups = groups
        self.reader = FrameReader()
        self.pending: list[Frame] = []
        self.streams = 0
        self.hello = guest.decode_hello(self.frame().payload)
        link.sendall(guest.encode_welcome("test"))

    def frame(self) -> Frame:
        while not self.pending:
            data = self.link.recv(65536)
            if not data:
                raise EOFError("the agent hung up")
            self.pending = list(self.reader.feed(data))
        return self.pending.pop(0)

    def start(self, *argv: str, user: str = "root", execution_id: str | None = None, oom_score_adj: int = 500) -> int:
        """Start a command in a group of its own; answers its stream."""
        self.streams += 1
        execution_id = execution_id or ids.new_ulid()
        frames = guest.encode_start(
            self.streams,
            argv=argv,
            env=ENV,
            cwd="/",
            user=user,
            flags=guest.StartFlag(0),
            execution_id=execution_id,
            oom_score_adj=oom_score_adj,
            descriptor=True,
        )
        descriptor = self.groups.make(execution_id)
        try:
            socket.send_fds(self.link, [b"".join(frames)], [descriptor])
        finally:
            os.close(descriptor)
        return self.streams

    def result(self, stream: int) -> Result:
        output = {1: b"", 2: b""}
        while True:
            frame = self.frame()
            if frame.stream != stream:
                continue
            if frame.type == GuestType.DATA:
                offset, data = guest.decode_offset(frame.payload)
                output[frame.channel] += data
                self.link.sendall(guest.encode_ack(stream, frame.channel, offset + len(data)))
            elif frame.type == GuestType.EXIT:
                end = guest.decode_exit(frame.payload)
                self.link.sendall(guest.encode_release(stream))
                return Result(end.exit_code, end.signal, output[1].decode(), output[2].decode())
            elif frame.type == GuestType.FAILED:
                raise AssertionError(guest.decode_failure(frame.payload))

    def run(self, *argv: str, user: str = "root") -> Result:
        return self.result(self.start(*argv, user=user))

    def shell(self, script: str, *, user: str = "root") -> str:
        """Standard output of a shell script that must succeed."""
        result = self.run("/bin/sh", "-c", script, user=user)
        assert result.exit_code == 0, result
        return result.stdout


@dataclass
class Machine:
    rig: Rig
    handle: Any
    agent: Agent

    @property
    def pid(self) -> int:
        """On the host, of the machine's first process."""
        return self.handle._state.pid

    @property
    def first_uid(self) -> int:
        return 0x70000000 + self.handle._state.range * 65536


@dataclass
class Rig:
    """`run` runs a coroutine on the loop that the driver lives in."""

    data: DataDir
    installation: str
    runner: asyncio.Runner
    undo: contextlib.ExitStack
    driver: RuncDriver = field(init=False)
    helper: subprocess.Popen[bytes] = field(init=False)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @property
    def scope(self) -> Scope:
        return Scope(self.data.root.resolve(), self.installation)

    @property
    def log(self) -> str:
        return (self.data.logs_dir / "helper.log").read_text()

    def start_helper(self, *, uid: int = 0) -> None:
        self.helper, channel = launch_helper(self.data, self.installation, node_uid=uid)
        self.driver = self.run(self._open(channel))

    async def _open(self, channel: socket.socket) -> RuncDriver:
        context = DriverContext(
            data=self.data,
            installation=self.installation,
            settings={},
            templates_dir=cache_dir() / "templates",
            agent_binary=Path("/nowhere"),
            helper_fd=channel.detach(),
        )
        return await RuncDriver.open(context)

    def stop_helper(self) -> None:
        self.run(self.driver.close())
        assert self.helper.wait(10) == 0

    def reclaim_all(self) -> None:
        """What failed tests have left."""
        for folder in self.data.sandboxes_dir.iterdir():
            self.run(self.driver.reclaim_leftovers(folder.name))

    def spec(self, **fields: Any) -> MachineSpec:
        newest = templates.installed(cache_dir() / "templates")[0]
        values: dict[str, Any] = {
            "sandbox_id": ids.new_sandbox_id(),
            "generation": 1,
            "template": Template(newest.name, newest.digest, newest.folder),
            "cpus": 1.0,
            "cpu_ids": (min(os.sched_getaffinity(0)),),
            "memory_bytes": 256 * MIB,
            "disk_bytes": 256 * MIB,
            "inodes": 4096,
            "pids": 64,
            "has_inputs": False,
        }
        return MachineSpec(**values | fields)

    def create(self, **fields: Any) -> Machine:
        handle = self.run(self.driver.create(self.spec(**fields)))
        return Machine(self, handle, Agent(self.link(handle), handle.groups))

    def link(self, handle: Any, timeout_s: float = 10) -> socket.socket:
        async def connect() -> socket.socket:
            return await handle.connect(asyncio.get_running_loop().time() + timeout_s)

        return self.run(connect())

    def end(self, machine: Machine) -> None:
        machine.agent.link.close()
        self.run(machine.handle.destroy())
        self.run(machine.handle.reclaim())

    @contextlib.contextmanager
    def machine(self, **fields: Any) -> Iterator[Machine]:
        made = self.create(**fields)
        try:
            yield made
        finally:
            self.end(made)


def launch_helper(
    data: DataDir, installation: str, *, node_uid: int = 0
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The helper as the node's launcher starts it, and the node's end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, open(data.logs_dir / "helper.log", "ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "bellglass.node.helper", "--data-dir", str(data.root)),
                *("--cache-dir", str(cache_dir()), "--installation", installation),
                *("--node-uid", str(node_uid), "--node-gid", str(node_uid), "--fd", str(theirs.fileno())),
                *("--proxy-uid", str(PROXY_UID), "--resolver-uid", str(RESOLVER_UID)),
                *("--proxy-gid", str(EGRESS_GID), "--resolver-gid", str(EGRESS_GID)),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    return process, ours


@contextlib.contextmanager
def new_rig(*, uid: int = 0) -> Iterator[Rig]:
    """A data folder with an lxcfs of its own, and a helper. At the end all is gone."""
    with contextlib.ExitStack() as undo:
        # Below a folder that only root may enter, as many people's are.
        top = Path(tempfile.mkdtemp(prefix="bellglass-rig-"))
        undo.callback(shutil.rmtree, top)
        data = DataDir(top / "data")
        for folder in (data.root, data.run_dir, data.logs_dir, data.node_dir, data.inputs_dir, data.lxcfs_dir):
            folder.mkdir()
        undo.enter_context(_lxcfs(data.lxcfs_dir))
        runner = undo.enter_context(asyncio.Runner())
        rig = Rig(data, ids.new_installation_id(), runner, undo)
        rig.start_helper(uid=uid)
        undo.callback(rig.stop_helper)
        undo.callback(rig.reclaim_all)
        rig.end(rig.create())  # what is made once, such as the runtime's folder, is there before anybody looks
        yield rig


@contextlib.contextmanager
def _lxcfs(folder: Path) -> Iterator[None]:
    process = subprocess.Popen(
        ["lxcfs", "--foreground", f"--pidfile={folder.parent}/lxcfs.pid", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 10
        while not (folder / "proc/meminfo").exists():
            assert process.poll() is None and time.monotonic() < deadline, "lxcfs does not come up"
            time.sleep(0.01)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        subprocess.run(["umount", "--lazy", str(folder)], check=False, stderr=subprocess.DEVNULL)
