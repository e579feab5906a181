"""Connections to ports through the node: bytes, ends, resets, windows, limits, an agent that lies."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness import Box, bench
from puppet import PuppetHost, data, eof, read_frames

from bellglass.errors import AgentLost, LimitExceeded, NodeUnavailable, NotSupported, PortUnreachable, SandboxGone
from bellglass.link import LinkStream
from bellglass.node.ports.dial import DialStream
from bellglass.wire import tlv
from bellglass.wire.frames import encode
from bellglass.wire.guest import WINDOW_BYTES, GuestType

RESET = struct.pack("ii", 1, 0)
HELLO = encode(GuestType.HELLO, 0, tlv.put(1, 1) + tlv.put(2, 16) + tlv.put(3, b"b" * 16) + tlv.put(4, 1))
CONNECTED = encode(GuestType.CONNECTED, 1, tlv.put(1, 4))


class Program:
    """What listens inside: here on this host, where the fake driver's agent runs."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.writers: list[asyncio.StreamWriter] = []

    async def accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(10):
            sock, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        reader, writer = await asyncio.open_connection(sock=sock)
        self.writers.append(writer)
        return reader, writer


@asynccontextmanager
async def program() -> AsyncIterator[Program]:
    made = Program()
    try:
        yield made
    finally:
        made.listener.close()
        for writer in made.writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in made.writers), return_exceptions=True)


async def dial(box: Box, port: int) -> LinkStream:
    stream = await box.bench.link.open("port.dial", box.ref | {"port": port})
    await stream.head()
    return stream


def test_bytes_both_ways_with_each_end(run) -> None:
    async def scenario() -> None:
        async with bench() as node, program() as listens:
            box = await node.create()
            question, answer = os.urandom(3_000_000), os.urandom(5_000_000)
            async with await dial(box, listens.port) as stream:
                reader, writer = await listens.accept()

                async def serve() -> bytes:
                    got = await reader.read(-1)  # to the end: half of the connection
                    writer.write(answer)
                    await writer.drain()
                    writer.close()
                    return got

                serving = asyncio.create_task(serve())
                await stream.send(question)
                await stream.end()
                assert await stream.read_all(2**30) == answer
                assert await serving == question
            again = await dial(box, listens.port)
            reader, writer = await listens.accept()
            writer.write(b"first")
            writer.write_eof()
            assert await again.read_all(100) == b"first"
            await again.send(b"still heard")
            await again.end()
            assert await reader.read(-1) == b"still heard"
            writer.close()

    run(scenario())


def test_refused_reset_and_a_caller_that_leaves(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            async with program() as listens:
                stream = await dial(box, listens.port)
                _, writer = await listens.accept()
                writer.write(b"last words")
                assert await anext(aiter(stream)) == b"last words"
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
                with pytest.raises(PortUnreachable) as reset:
                    await stream.read_all(100)
                assert reset.value.details == {"port": listens.port, "reason": "reset"}

                half = await dial(box, listens.port)
                _, writer = await listens.accept()
                writer.write_eof()
                assert await half.read_all(100) == b""
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
                with pytest.raises(PortUnreachable):
                    for _ in range(1000):
                        await half.send(bytes(100_000))

                left = await dial(box, listens.port)
                reader, _ = await listens.accept()
                await left.reset()
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
            with pytest.raises(PortUnreachable) as refused:
                await dial(box, listens.port)
            assert refused.value.details == {"port": listens.port, "reason": "refused"}

    run(scenario())


async def ended(reader: asyncio.StreamReader) -> bool:
    """The program inside sees an end: a reset, or an end of file where the kernel closed a dead agent's socket."""
    try:
        return await asyncio.wait_for(reader.read(1), 10) == b""
    except ConnectionError:
        return True


def test_what_ends_the_sandbox_or_the_node_ends_the_connection(run) -> None:
    async def scenario() -> None:
        async with bench() as node, program() as listens:
            box, other = await node.create(), await node.create()
            stream, kept = await dial(box, listens.port), await dial(other, listens.port)
            inside, _ = await listens.accept()
            inside_kept, _ = await listens.accept()
            await node.delete(box)
            with pytest.raises(SandboxGone):
                await stream.read_all(10)
            with pytest.raises(SandboxGone):
                await dial(box, listens.port)
            await node.restart()
            with pytest.raises(NodeUnavailable):
                await kept.read_all(10)
            for reader in (inside, inside_kept):
                assert await ended(reader)
            await dial(other, listens.port)

    run(scenario())


def test_a_slow_caller_holds_the_program_and_nobody_else(run) -> None:
    async def scenario() -> None:
        async with bench() as node, program() as listens:
            box = await node.create()
            slow, quick = await dial(box, listens.port), await dial(box, listens.port)
            _, flood = await listens.accept()
            _, answers = await listens.accept()
            written = 0
            try:
                async with asyncio.timeout(1):
                    while True:
                        flood.write(bytes(256 * 1024))
                        await flood.drain()
                        written += 256 * 1024
            except TimeoutError:
                pass
            assert written < 16 * 2**20, "kernel buffers and the windows, no more"
            for _ in range(100):
                answers.write(b"x" * 1000)
                await answers.drain()
                got = b""
                while len(got) < 1000:
                    got += await anext(aiter(quick))
            flood.close()
            total = len(await slow.read_all(2**30))
            assert written <= total

    run(scenario())


def test_as_many_as_the_agent_has_places_for(run) -> None:
    async def scenario() -> None:
        async with bench() as node, program() as listens:
            box = await node.create()
            streams = [await dial(box, listens.port) for _ in range(128)]
            with pytest.raises(LimitExceeded):
                await dial(box, listens.port)
            Path(box.workdir).mkdir()
            assert (await box.exec(["echo", "room"]))["stdout"] == "room\n"
            await streams.pop().reset()
            async with asyncio.timeout(10):
                while True:
                    try:
                        await dial(box, listens.port)
                        return
                    except LimitExceeded:
                        await asyncio.sleep(0.01)

    run(scenario())


def test_an_agent_of_an_older_release_dials_nothing(run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            await host.agent()
            with pytest.raises(NotSupported):
                await DialStream(host, 80).__aenter__()
            assert host.session.violations == 0

    run(scenario())


LIES = {
    "bytes before CONNECTED": data(1, 1, 0, b"x"),
    "an end before CONNECTED": eof(1, 1, 0),
    "a second CONNECTED": CONNECTED + CONNECTED,
    "a gap": CONNECTED + data(1, 1, 1, b"x"),
    "another channel": CONNECTED + data(1, 2, 0, b"x"),
    "beyond the window": CONNECTED + data(1, 1, 0, bytes(WINDOW_BYTES)) + data(1, 1, WINDOW_BYTES, b"x"),
    "bytes after the end": CONNECTED + eof(1, 1, 0) + data(1, 1, 0, b"x"),
    "a result before the end": CONNECTED + encode(GuestType.RESULT, 1),
    "an ACK of what was never sent": CONNECTED + encode(GuestType.ACK, 1, struct.pack("<Q", 1)),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_agent_that_lies_loses_its_link(run, tmp_path: Path, lie: str) -> None:
    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            loop = asyncio.get_running_loop()
            agent = await host.agent(hello=HELLO)

            async def use() -> None:
                async with DialStream(host, 80) as connection:
                    async for _ in connection.chunks():
                        continue
                    await connection.over()

            using = asyncio.create_task(use())
            (_, request) = await read_frames(agent, 2)
            assert request.type == GuestType.DIAL
            await loop.sock_sendall(agent, LIES[lie])
            with pytest.raises(AgentLost):
                await using
            assert host.session.violations == 1

    run(scenario())
