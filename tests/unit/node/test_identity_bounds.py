"""How much of the node and the server a sandbox's calls may take: connections, floods, single bytes."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from pathlib import Path

import pytest
from identity_rig import ANSWER, HOST, TOKEN, Rig, on_the_nodes_loop, rig

from bellglass.node.net import identity, visit
from bellglass.node.net.identity import BURST, CONNECTIONS, Budget


@pytest.fixture(autouse=True)
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are not counted, but where a test is about that; and a client that keeps its end open is left at once."""
    monkeypatch.setattr(identity, "BURST", 1e6)
    monkeypatch.setattr(visit, "LINGER_S", 0.05)


@on_the_nodes_loop
async def test_connections_of_one_sandbox_are_its_own(tmp_path: Path) -> None:
    """All of its places are taken by requests that never end: the others are served at once."""
    get = b"GET /v1/me HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n"
    async with rig(tmp_path) as here:
        held = [await asyncio.open_connection("127.0.0.1", here.ours.port) for _ in range(CONNECTIONS)]
        for _, writer in held:
            writer.write(b"GET /v1/me HTTP/1.1\r\n")
        waiting = asyncio.create_task(here.ours.ask(get))
        for _ in range(20):
            assert await here.theirs.ask(get) == ANSWER
        assert not waiting.done()
        held[0][1].close()
        assert await waiting == ANSWER, "a place that is free again is taken"
        for _, writer in held:
            writer.close()


@on_the_nodes_loop
async def test_floods_are_taken_as_fast_as_they_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get = b"GET /v1/me HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n"
    monkeypatch.setattr(identity, "BURST", 10.0)
    async with rig(tmp_path) as here:
        began = time.monotonic()
        answers = await asyncio.gather(*(here.ours.ask(get) for _ in range(30)))
        took = time.monotonic() - began
        assert answers == [ANSWER] * 30, "late, but answered"
        assert took > 19 / identity.PER_SECOND
        began = time.monotonic()
        await here.theirs.ask(get)
        assert time.monotonic() - began < took


def test_a_budget_can_be_overdrawn() -> None:
    budget = Budget(20.0, BURST)
    assert budget.wait_s(1000.0) == 0.0
    budget.spend(BURST - 1)
    assert budget.wait_s(1000.0) == 0.0
    budget.spend(10.0)
    assert budget.wait_s(1000.0) == pytest.approx(0.5)
    assert budget.wait_s(1000.4) == pytest.approx(0.1)
    assert budget.wait_s(2000.0) == 0.0
    budget.spend(BURST)
    assert budget.wait_s(2000.0) == pytest.approx(0.05), "no more than a burst is saved up"


@on_the_nodes_loop
async def test_what_a_call_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces, the length of its answer, and whether it leaves something in the database."""
    get, put = (b"%s /v1/me HTTP/1.1\r\n" % method + HOST + TOKEN for method in (b"GET", b"PUT"))
    spent: dict[float, float] = {}

    def spend(self: Budget, tokens: float) -> None:
        spent[self._per_second] = spent.get(self._per_second, 0.0) + tokens

    monkeypatch.setattr(Budget, "spend", spend)

    async def cost(here: Rig, raw: bytes, answered: bytes) -> tuple[float, float]:
        spent.clear()
        assert (await here.ours.ask(raw)).startswith(answered)
        async with asyncio.timeout(5):
            while identity.WRITTEN_PER_SECOND not in spent:
                await asyncio.sleep(0)
        return spent[identity.PER_SECOND], spent[identity.WRITTEN_PER_SECOND]

    async with rig(tmp_path) as here:
        few, none = await cost(here, get + b"\r\n", b"HTTP/1.1 200")
        assert 1 <= few < 1.5 and none == 0
        assert await cost(here, put + b"\r\n", b"HTTP/1.1 200") == (few, 1)
        assert (await cost(here, get[:-5] + b"\r\n\r\n", b"HTTP/1.1 401"))[1] == 0, "the node alone knows of it"
        for status in (401, 403, 404):
            here.server.answer = b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % status
            assert (await cost(here, get + b"\r\n", b"HTTP/1.1"))[1] == 1
        here.server.answer = ANSWER + b"x" * (20 * identity.ANSWER_BYTES)
        assert 20 < (await cost(here, get + b"\r\n", b"HTTP/1.1 200"))[0] < 22


@on_the_nodes_loop
async def test_single_bytes_come_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "MAX_PIECES", 20)
    async with rig(tmp_path) as here:
        connection = socket.create_connection(("127.0.0.1", here.ours.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def trickle() -> bytes:
            with connection:
                for byte in b"GET /v1/me HTTP/1.1\r\n" + HOST + TOKEN:
                    if select.select([connection], [], [], 0.01)[0]:
                        break
                    connection.sendall(bytes([byte]))
                return connection.recv(4096)

        answer = await asyncio.to_thread(trickle)
        assert answer.startswith(b"HTTP/1.1 400 ") and b"pieces" in answer
