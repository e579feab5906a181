"""A guest agent that the test plays, frame by frame, against the node's session, executions and file operations."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

from bellglass.errors import SandboxGone
from bellglass.node.executions.records import Records, StreamIds
from bellglass.node.executions.registry import Executions, Limits
from bellglass.node.executions.spec import ExecutionSpec
from bellglass.node.guestlink.session import GuestSession
from bellglass.wire import tlv
from bellglass.wire.frames import FrameReader, encode
from bellglass.wire.guest import GuestType

HELLO = encode(GuestType.HELLO, 0, tlv.put(1, 1) + tlv.put(3, b"b" * 16) + tlv.put(4, 1))
STARTED = encode(GuestType.STARTED, 1, tlv.put(1, 77))
EXIT = encode(GuestType.EXIT, 1, tlv.put(1, 0))


class PuppetHandle:
    """A machine whose agent the test plays: `links` are the agent's ends."""

    sandbox_id = "sbaaaaaaaaaaaaaaaaaaaa"
    groups = None
    frozen = False
    thawed_at = float("-inf")

    def __init__(self) -> None:
        self.agents: asyncio.Queue[socket.socket] = asyncio.Queue()

    async def connect(self, deadline: float) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        await self.agents.put(theirs)
        return ours


class PuppetHost:
    """As much of a sandbox as executions and file operations need."""

    default_cwd = "/"
    groups = None

    def __init__(self, folder: Path) -> None:
        self.handle = PuppetHandle()
        self.sandbox_id = self.handle.sandbox_id
        self.records = Records(folder / "executions.db")
        self.session = GuestSession(self.handle, hostname="h", next_stream_id=StreamIds(self.records, self.sandbox_id))
        self.executions = Executions(self, self.records, folder / "logs", Limits(2**20, 8, 100))
        self.operations = 0
        self.killed: list[str] = []
        self.given: list[socket.socket] = []

    async def __aenter__(self) -> PuppetHost:
        self.session.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close(SandboxGone("gone"))
        for sock in self.given:
            sock.close()
        while not self.handle.agents.empty():
            self.handle.agents.get_nowait().close()
        self.records.close()

    async def agent(self, *, hello: bytes = HELLO) -> socket.socket:
        sock = await self.handle.agents.get()
        self.given.append(sock)
        await asyncio.get_running_loop().sock_sendall(sock, hello)
        return sock

    def active(self) -> None: ...

    def run_started(self, run: Any) -> None:
        self.executions.stored(run)

    def input_ended(self, run: Any, offset: int) -> None:
        self.executions.input_ended(run, offset)

    def run_resized(self, run: Any) -> None:
        self.executions.resized(run)

    def run_finished(self, run: Any, record: Any) -> None:
        self.executions.ended(run, record)

    def kill_machine(self, why: str) -> None:
        self.killed.append(why)

    def spawn(self, coroutine: Any, name: str) -> None:
        self.task = asyncio.get_running_loop().create_task(coroutine)


def spec(execution_id: str = "01ARZ3NDEKTSV4RRFFQ69G5FAV", **more: Any) -> ExecutionSpec:
    fields = {
        "id": execution_id, "command": ["x"], "argv": ("x",), "env": {}, "cwd": "/", "user": "root",
        "timeout_s": None, "stdin": None, "stdin_open": False, "detach": True, "digest": "d",
    }  # fmt: skip
    return ExecutionSpec(**(fields | more))


async def read_frames(sock: socket.socket, count: int) -> list[Any]:
    loop, reader, found = asyncio.get_running_loop(), FrameReader(), []
    async with asyncio.timeout(5):
        while len(found) < count:
            found += reader.feed(await loop.sock_recv(sock, 2**20))
    return found


def data(stream: int, channel: int, offset: int, payload: bytes) -> bytes:
    return encode(GuestType.DATA, stream, struct.pack("<Q", offset) + payload, channel=channel)


def eof(stream: int, channel: int, offset: int) -> bytes:
    return encode(GuestType.EOF, stream, struct.pack("<Q", offset), channel=channel)
