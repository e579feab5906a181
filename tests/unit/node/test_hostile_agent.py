"""A guest that speaks anything: the session stays bounded, answers, and says who broke the protocol."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from puppet import EXIT, HELLO, STARTED, PuppetHost, data, eof, read_frames, spec

from bellglass.errors import AgentLost, BellglassError, SandboxGone
from bellglass.node.files.stream import FileStream
from bellglass.node.files.watch import WatchStream
from bellglass.node.files.watches import Watches
from bellglass.node.guestlink import session as session_module
from bellglass.node.guestlink.budget import CpuBudget
from bellglass.node.guestlink.connection import FRAMES_PER_TURN, WRITE_LIMIT_BYTES, GuestConnection
from bellglass.wire import tlv
from bellglass.wire.frames import HEADER, FrameError, encode
from bellglass.wire.guest import FEATURE_WATCH, FileOp, GuestType


def test_the_honest_twin_is_served(run, tmp_path) -> None:
    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            agent = await host.agent()
            await host.session.wait_link(asyncio.get_running_loop().time() + 5)
            made, view = host.executions.create(spec())
            welcome, start = await read_frames(agent, 2)
            assert (welcome.type, start.type, start.stream) == (GuestType.WELCOME, GuestType.START, 1)
            await asyncio.get_running_loop().sock_sendall(
                agent, STARTED + data(1, 1, 0, b"hi") + eof(1, 1, 2) + eof(1, 2, 0) + EXIT
            )
            await made.ended.wait()
            assert view.record()["exit_code"] == 0 and view.record()["stdout_bytes"] == 2
            assert (await read_frames(agent, 1))[0].type == GuestType.RELEASE
            agent.close()

    run(scenario())


@pytest.mark.parametrize(
    "offence",
    [
        b"\xff" * 64,
        HEADER.pack(2**31, 18, 1, 0, 1),
        data(1, 1, 0, b"before STARTED"),
        STARTED + data(1, 1, 5, b"a gap"),
        STARTED + data(1, 3, 0, b"channel"),
        STARTED + data(1, 1, 0, b""),
        STARTED + data(1, 1, 0, b"x" * 262144) + data(1, 1, 262144, b"beyond the window") + b"",
        STARTED + eof(1, 1, 9),
        STARTED + eof(1, 1, 0) + data(1, 1, 0, b"after its end"),
        STARTED + data(1, 1, 0, b"twice") + data(1, 1, 0, b"twice"),
        STARTED + data(1, 1, 0, b"and") + data(1, 1, 1, b"once more in part"),
        STARTED + EXIT,
        STARTED + encode(GuestType.EXIT, 1, b""),
        STARTED + encode(GuestType.ACK, 1, struct.pack("<Q", 10)),
        encode(GuestType.STARTED, 1, tlv.put(1, 0)),
        encode(GuestType.STARTED, 99, tlv.put(1, 5)),
        HELLO,
        encode(GuestType.PING, 0, b"x" * 65),
        STARTED + encode(GuestType.EXIT, 1, tlv.put(9, b"") * 3000),
        encode(99, 1, b"x" * 16385),
        encode(GuestType.DATA, 1, b"short"),
    ],
)
def test_an_offence_ends_the_link_and_is_counted(run, tmp_path, offence) -> None:
    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            loop = asyncio.get_running_loop()
            agent = await host.agent()
            await host.session.wait_link(loop.time() + 5)
            # A reader that takes nothing: nothing beyond the window may be acknowledged.
            made, _ = host.executions.create(spec(detach=False))
            from bellglass.node.executions.log import Cursor

            made.reader_attached(Cursor(-(10**9)), starter=True)
            await read_frames(agent, 2)
            await loop.sock_sendall(agent, offence)
            async with asyncio.timeout(5):
                while await loop.sock_recv(agent, 2**20):
                    pass
            again = await host.agent(hello=encode(GuestType.HELLO, 0, tlv.put(1, 1) + tlv.put(7, b"\1\0\0\0\x10")))
            await host.session.wait_link(loop.time() + 5)
            assert host.session.violations == 1
            assert made.running, "the execution is still ours to end"
            agent.close()
            again.close()

    run(scenario())


def test_unknown_streams_of_hello_are_released_once(run, tmp_path) -> None:
    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            held = b"".join(tlv.put(7, struct.pack("<IB", number, 16)) for number in (5, 6))
            agent = await host.agent(hello=encode(GuestType.HELLO, 0, tlv.put(1, 1) + held))
            frames = await read_frames(agent, 5)
            kinds = [(frame.type, frame.stream) for frame in frames]
            assert kinds[0] == (GuestType.WELCOME, 0)
            assert kinds[1:] == [(kind, n) for n in (5, 6) for kind in (GuestType.ABORT, GuestType.RELEASE)]
            agent.close()

    run(scenario())


@pytest.mark.parametrize(
    "greeting",
    [b"", b"GET / HTTP/1.1\r\n\r\n", encode(GuestType.PING, 0, b""), encode(GuestType.HELLO, 0, tlv.put(1, 0))],
)
def test_no_hello_no_link(run, tmp_path, monkeypatch, greeting) -> None:
    monkeypatch.setattr(session_module, "HELLO_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            bad = await host.agent(hello=greeting)
            with pytest.raises(AgentLost):
                await host.session.wait_link(asyncio.get_running_loop().time() + 0.1)
            good = await host.agent()
            await host.session.wait_link(asyncio.get_running_loop().time() + 5)
            bad.close()
            good.close()

    run(scenario())


def test_a_flood_of_frames_leaves_turns_to_others(run) -> None:
    """An agent that sends frames as fast as it can costs another link's answer a bounded wait."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        noise, theirs = socket.socketpair()
        theirs.setblocking(False)
        seen = 0

        def count(frame: Any) -> None:
            nonlocal seen
            seen += 1

        connection = GuestConnection(noise, count, lambda reason: None, CpuBudget())
        connection.start()
        flood = encode(GuestType.PONG, 0) * 20_000

        async def spam() -> None:
            while True:
                await loop.sock_sendall(theirs, flood)

        task = asyncio.create_task(spam())
        worst = 0.0
        for _ in range(50):
            began = time.perf_counter()
            await asyncio.sleep(0)
            worst = max(worst, time.perf_counter() - began)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert seen >= FRAMES_PER_TURN
        assert worst < 0.25, worst
        connection.close()
        theirs.close()

    run(scenario())


def test_an_agent_that_never_reads_is_not_read_either(run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        answered = 0

        def answer(frame: Any) -> None:
            nonlocal answered
            answered += 1
            connection.send(encode(GuestType.PONG, 0, b"p" * 64) * 100)

        connection = GuestConnection(ours, answer, lambda reason: None, CpuBudget())
        connection.start()
        ping = encode(GuestType.PING, 0, b"p" * 64) * 1000
        sent = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                while True:
                    await loop.sock_sendall(theirs, ping)
                    sent += len(ping)
        assert connection.queued_bytes < WRITE_LIMIT_BYTES + 8000
        before = answered
        await asyncio.sleep(0.1)
        assert answered == before, "reading has stopped"
        connection.close()
        theirs.close()

    run(scenario())


def test_answers_without_bytes_that_nobody_reads_are_few(run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        queued = 0

        def answer(frame: Any) -> None:
            nonlocal queued
            connection.send(encode(GuestType.PONG, 0, frame.payload))
            queued = len(connection._queue)

        connection = GuestConnection(ours, answer, lambda reason: None, CpuBudget())
        connection.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                while True:
                    await loop.sock_sendall(theirs, encode(GuestType.PING, 0) * 1000)
        assert 0 < queued < 20_000, "each costs some hundred bytes of the node"
        connection.close()
        theirs.close()

    run(scenario())


def test_an_agent_that_dies_with_unread_bytes_is_noticed(run) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        reasons: list[str] = []
        connection = GuestConnection(ours, lambda frame: None, reasons.append, CpuBudget())
        connection.start()
        connection.send(encode(GuestType.PING, 0, b"unread"))
        theirs.send(encode(GuestType.PONG, 0))
        theirs.close()
        async with asyncio.timeout(5):
            while not reasons:
                await asyncio.sleep(0.01)
        assert connection.closed

    run(scenario())


def test_descriptors_of_unsent_frames_are_closed(run) -> None:
    import os

    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        connection = GuestConnection(ours, lambda frame: None, lambda reason: None, CpuBudget())
        connection.start()
        connection.send(b"x" * (8 * 2**20))
        read, write = os.pipe()
        connection.send(b"later", descriptor=write)
        connection.close()
        connection.send(b"never", descriptor=os.dup(read))
        assert os.read(read, 1) == b"", "the write end is closed"
        os.close(read)
        theirs.close()

    run(scenario())


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.builds(
                lambda kind, stream, channel, flags, payload: encode(
                    kind, stream, payload, channel=channel, flags=flags
                ),
                st.integers(0, 40),
                st.integers(0, 4),
                st.integers(0, 4),
                st.integers(0, 7),
                st.one_of(
                    st.binary(max_size=80),
                    st.builds(
                        lambda offset, more: struct.pack("<Q", offset) + more, st.integers(0, 2**64 - 1), st.binary()
                    ),
                    st.builds(
                        lambda fields: b"".join(tlv.put(tag, value) for tag, value in fields),
                        st.lists(
                            st.tuples(st.integers(0, 13), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=30)))
                        ),
                    ),
                ),
            ),
        ),
        max_size=30,
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_never_breaks_the_node(run, tmp_path_factory, chunks) -> None:
    """Whatever comes, callers get an answer or an error of ours, and nothing else is raised."""

    async def scenario() -> None:
        folder = tmp_path_factory.mktemp("fuzz")
        async with PuppetHost(folder) as host:
            loop = asyncio.get_running_loop()
            agent = await host.agent()
            await host.session.wait_link(loop.time() + 5)
            made, _ = host.executions.create(spec(stdin=b"input", detach=False))
            operation = FileStream(host, FileOp.LIST, "/", user="root", base="/")  # type: ignore[arg-type]

            async def listed() -> None:
                async with operation:
                    async for _ in operation.chunks():
                        pass

            task = asyncio.create_task(listed())
            await asyncio.sleep(0)
            try:
                await loop.sock_sendall(agent, STARTED + b"".join(chunks))
            except (BrokenPipeError, ConnectionResetError):
                pass
            for _ in range(8):
                await asyncio.sleep(0)
            agent.close()
            (result,) = await asyncio.gather(_settled(task, host), return_exceptions=True)
            assert result is None or isinstance(result, BellglassError), result
            assert made.log.total_bytes <= 2 * 262144 + 200

    run(scenario())


async def _settled(task: asyncio.Task[None], host: PuppetHost) -> None:
    await host.session.close(SandboxGone("gone"))
    await task


READY, CREATED = (len(record).to_bytes(4, "little") + record for record in (tlv.put(1, "b"), tlv.put(1, "c")))


@pytest.mark.parametrize("told", [b"", READY[:-1], CREATED])
def test_a_watch_that_does_not_begin_is_given_up(run, tmp_path, told: bytes) -> None:
    """One that ended before it was ready once kept the node's loop to itself."""

    async def watched(host: PuppetHost, agent: socket.socket, told: bytes) -> None:
        async with WatchStream(host, "/", user="root", base="/") as watch:  # type: ignore[arg-type]
            frames = data(watch.id, 1, 0, told) if told else b""
            await asyncio.get_running_loop().sock_sendall(agent, frames + eof(watch.id, 1, len(told)))
            async with asyncio.timeout(5):
                await watch.ready()

    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            host.watches = Watches()  # type: ignore[attr-defined]
            agent = await host.agent(hello=encode(GuestType.HELLO, 0, tlv.put(1, 1) + tlv.put(2, FEATURE_WATCH)))
            await watched(host, agent, READY)
            with pytest.raises(FrameError, match="before it is ready"):
                await watched(host, agent, told)

    run(scenario())
