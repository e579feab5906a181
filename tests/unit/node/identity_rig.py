"""Sandboxes that call the API, for tests of the node's part: a server that writes down what it was asked."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

from bellglass.datadir import DataDir
from bellglass.link import credential
from bellglass.link.credential import Caller
from bellglass.node.net.identity import MARKER, Identities

OURS, THEIRS = Caller("sb" + "a" * 20, 1), Caller("sb" + "b" * 20, 3)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
TOKEN = f"Authorization: Bearer {MARKER}\r\n".encode()
HOST = b"Host: 198.18.0.1\r\n"


def on_the_nodes_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        uvloop.run(test(*given, **named))

    return run


class Listening:
    """A handle whose gateway is this host's loopback."""

    def __init__(self) -> None:
        self.port = 0

    async def listeners(self, names: Collection[str] = ("identity",)) -> dict[str, socket.socket]:
        assert list(names) == ["identity"]
        listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self.port = listener.getsockname()[1]
        return {"identity": listener}

    async def ask(self, raw: bytes, *, end: bool = False) -> bytes:
        """All that is answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(raw)
            if end:
                writer.write_eof()
            async with asyncio.timeout(30):
                return await reader.read()
        finally:
            writer.close()


class Server:
    """`asked`: head and body of each request. `answer`: what it says to each; `hold`: not before this is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []
        self.answer = ANSWER
        self.hold: asyncio.Event | None = None
        self.serving: set[Any] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: ")), 0)
        self.asked.append((head, await reader.readexactly(length)))
        if self.hold is not None:
            await self.hold.wait()
        writer.write(self.answer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def end(self) -> None:
        if self.hold is not None:
            self.hold.set()
        await asyncio.gather(*self.serving)

    def callers(self) -> list[Caller | None]:
        found = []
        for head, _ in self.asked:
            words = [line for line in head.split(b"\r\n") if line.lower().startswith(b"authorization:")]
            assert len(words) == 1, head
            found.append(credential.read("secret", "inst", words[0].decode().split()[-1], time.time()))
        return found


class Rig:
    def __init__(self, identities: Identities, server: Server, ours: Listening, theirs: Listening) -> None:
        self.identities, self.server, self.ours, self.theirs = identities, server, ours, theirs

    async def refused(self, raw: bytes, status: int, *, end: bool = False) -> bytes:
        """It is answered with this status by the node, and the server hears nothing."""
        before = len(self.server.asked)
        answer = await self.ours.ask(raw, end=end)
        assert answer.startswith(b"HTTP/1.1 %d " % status), (raw[:200], answer)
        assert answer.count(b"HTTP/1.1 ") == 1 and b'"error":' in answer
        assert len(self.server.asked) == before, raw
        return answer


@asynccontextmanager
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    data, server = DataDir(tmp_path), Server()
    data.node_dir.mkdir(parents=True)
    data.node_secret_file.write_text("secret\n")
    data.identity_socket.parent.mkdir(parents=True)
    listening = await asyncio.start_unix_server(server.serve, data.identity_socket)
    identities, ours, theirs = Identities(data, "inst"), Listening(), Listening()
    await identities.attach(OURS, ours)
    identities.start()
    await identities.attach(THEIRS, theirs)
    while not ours.port:
        await asyncio.sleep(0)
    try:
        yield Rig(identities, server, ours, theirs)
    finally:
        await identities.close()
        listening.close()
        await server.end()
