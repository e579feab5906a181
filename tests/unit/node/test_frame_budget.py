"""An agent's frames cost the node a share of a core and no more; honest traffic is not slowed down by that."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from typing import Any

import pytest
from puppet import EXIT, HELLO, STARTED, PuppetHost, data, eof, read_frames, spec

from bellglass.node.guestlink import session as session_module
from bellglass.node.guestlink.budget import BURST_S, SHARE, CpuBudget
from bellglass.wire.frames import encode
from bellglass.wire.guest import GuestType


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_share_holds_over_time() -> None:
    clock = Clock()
    budget = CpuBudget(clock)
    used = 0.0
    while clock.now < 1060:
        pause_s = budget.spend(0.001)
        used += 0.001
        clock.now += 0.001 + pause_s
    assert budget.pauses > 0
    assert used < 60 * SHARE + 2 * BURST_S, f"{used:.2f} s of 60"
    assert used > 60 * SHARE * 0.7, "and what it may have it gets"


def test_one_below_its_share_never_waits() -> None:
    clock = Clock()
    budget = CpuBudget(clock)
    for _ in range(10_000):
        assert budget.spend(0.001) == 0
        clock.now += 0.01


def test_output_and_ended_streams_are_not_counted_against_it() -> None:
    clock = Clock()
    budget = CpuBudget(clock)
    for _ in range(10_000):
        budget.earn_bytes(262144)
        assert budget.spend(0.0009) == 0, "what 256 KiB of output cost"
        budget.earn_stream()
        assert budget.spend(0.0009) == 0
        clock.now += 0.001


def test_earnings_are_not_saved_up_for_a_flood() -> None:
    clock = Clock()
    budget = CpuBudget(clock)
    for _ in range(1000):
        budget.earn_bytes(2**30)
        budget.spend(0.0)
    spent = 0.0
    while budget.spend(0.001) == 0:
        spent += 0.001
    assert spent < 3 * BURST_S


FLOODS = {
    "answers to nothing": encode(GuestType.PONG, 0) * 5000,
    "frames of a stream that is over": encode(GuestType.DATA, 1, b"x" * 40) * 5000,
    "of an unknown type": encode(77, 0, b"x" * 40) * 5000,
    "questions": encode(GuestType.PING, 0, b"x" * 8) * 5000,
    "a byte each": b"",
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_gets_its_share_of_the_loop(run: Any, tmp_path: Any, monkeypatch: Any, kind: str) -> None:
    """The loop works for it a fraction of the time, and others get their turns meanwhile."""
    monkeypatch.setattr(session_module, "MAX_IGNORED_FRAMES", 10**9)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with PuppetHost(tmp_path) as host:
            agent = await host.agent()
            await host.session.wait_link(loop.time() + 5)
            made, _ = host.executions.create(spec())
            await read_frames(agent, 2)
            done = STARTED + data(1, 1, 0, b"hi") + eof(1, 1, 2) + eof(1, 2, 0) + EXIT
            flood = FLOODS[kind]
            if flood:
                await loop.sock_sendall(agent, done)
                await made.ended.wait()
            else:
                await loop.sock_sendall(agent, STARTED)
            stop = threading.Event()
            began, cpu = loop.time(), time.thread_time()
            sender = loop.run_in_executor(None, push, agent.dup(), flood, stop)
            worst = 0.0
            try:
                async with asyncio.timeout(30):
                    while host.session.budget.pauses < 4:
                        turn = time.thread_time()
                        await asyncio.sleep(0.005)
                        worst = max(worst, time.thread_time() - turn)
            finally:
                stop.set()
                await sender
            took, used = loop.time() - began, time.thread_time() - cpu
            assert used < 2 * SHARE * took + 0.2, f"{used:.2f} s of {took:.2f} went to the flood"
            assert worst < 0.25, worst
            agent.close()

    run(scenario())


def push(sock: socket.socket, flood: bytes, stop: threading.Event) -> None:
    """From a thread, as fast as it is read, until `stop` or hung up on."""
    sock.setblocking(False)
    offset = 0
    with sock:
        while True:
            piece = flood
            if not flood:
                piece = b"".join(data(1, 1, n, b"x") for n in range(offset, offset + 1000))
                offset += 1000
            view = memoryview(piece)
            while view:
                if stop.is_set():
                    return
                readable, writable, _ = select.select([sock], [sock], [], 0.1)
                if readable and not sock.recv(65536):
                    return
                if writable:
                    view = view[sock.send(view) :]


def test_frames_that_mean_nothing_end_the_link(run: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(session_module, "MAX_IGNORED_FRAMES", 100)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with PuppetHost(tmp_path) as host:
            agent = await host.agent()
            await host.session.wait_link(loop.time() + 5)
            await loop.sock_sendall(agent, encode(GuestType.PONG, 0) * 100 + encode(GuestType.PING, 0))
            assert [frame.type for frame in await read_frames(agent, 2)][1] == GuestType.PONG, "so many are borne"
            await loop.sock_sendall(agent, encode(GuestType.PONG, 0))
            async with asyncio.timeout(5):
                assert await loop.sock_recv(agent, 1) == b""
            await host.agent()
            await host.session.wait_link(loop.time() + 5)
            assert (host.session.violations, host.session.ignored_frames) == (1, 0)

    run(scenario())


def test_links_that_end_at_once_are_few(run: Any, tmp_path: Any, caplog: Any) -> None:
    """An agent that dials again and again gets a link a second, and a handful of lines in the log."""

    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            caplog.set_level("INFO", "bellglass.guest")
            began = time.monotonic()
            while time.monotonic() - began < 1.5:
                try:
                    async with asyncio.timeout(2 - (time.monotonic() - began)):
                        (await host.agent(hello=HELLO + HELLO)).close()
                except TimeoutError:
                    break
            assert 2 <= host.session.ends <= 12, host.session.ends
            lines = [record for record in caplog.records if record.name == "bellglass.guest"]
            assert 1 <= len(lines) <= 5

    run(scenario())
