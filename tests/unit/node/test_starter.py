"""The reader that started a waiting execution: its place while its connection is broken, who takes it, when it goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness import INSTALLATION, SECRET, Bench, Box, bench, frames

from bellglass import ids
from bellglass.link import LinkClient
from bellglass.node.executions import starter
from bellglass.wire.output import OutputType

SIZE = 5_000_000
LEAD = starter.AHEAD_BYTES + 3 * 256 * 1024
"""What may lie in the log beyond the place: the lead, and two windows that were under way."""


async def break_link(node: Bench) -> None:
    """As when the server dies: nobody hung up."""
    await node.link.close()
    node.link = await LinkClient.connect(node.data.node_socket, secret=SECRET, installation=INSTALLATION)


async def output_bytes(box: Box, execution_id: str) -> int:
    return int((await box.call("execution.get", execution_id=execution_id))["output_bytes"])


async def at_rest(box: Box, execution_id: str) -> int:
    """Once the program gets no further."""
    before = -1
    async with asyncio.timeout(20):
        while (now := await output_bytes(box, execution_id)) != before:
            before = now
            await asyncio.sleep(0.2)
    return now


async def begun(box: Box) -> tuple[str, int]:
    """A waiting execution whose stream broke after its first bytes; answers how many had come."""
    execution_id = ids.new_ulid()
    stream = await box.open(["head", "-c", str(SIZE), "/dev/zero"], execution_id=execution_id)
    await stream.head()
    heard = 0
    async for chunk in stream:
        heard += len(chunk)
        if heard > 1000:
            break
    return execution_id, heard


def output(box: Box, execution_id: str, offset: int, **more: Any) -> Any:
    params = {"execution_id": execution_id, "offset": offset, "follow": True, "accept": "frames"} | more
    return box.bench.link.open("execution.output", box.ref | params, body=False)


def test_the_place_is_kept_and_taken_over(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id, _ = await begun(box)
            await break_link(node)
            held = await at_rest(box, execution_id)
            assert held < SIZE, "it waits for its reader"
            onlooker = await output(box, execution_id, 0)
            await onlooker.head()
            await asyncio.sleep(0.3)
            assert await output_bytes(box, execution_id) == held, "any other reader changes nothing"
            out, _, others = await frames(await output(box, execution_id, 0, resume=True))
            assert len(out) == SIZE and others[-1].type is OutputType.EXIT
            assert OutputType.SKIPPED not in [event.type for event in others]

    run(scenario())


@pytest.mark.parametrize("how", ["link", "node"])
def test_after_a_while_nothing_is_held_back(run, monkeypatch, how: str) -> None:
    monkeypatch.setattr(starter, "PLACE_KEPT_S", 1.0)

    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id, _ = await begun(box)
            await (break_link(node) if how == "link" else node.restart())
            assert await output_bytes(box, execution_id) < SIZE
            async with asyncio.timeout(20):
                while (await box.call("execution.get", execution_id=execution_id))["state"] == "running":
                    await asyncio.sleep(0.05)
            assert await output_bytes(box, execution_id) == SIZE

    run(scenario())


def test_a_restarted_node_holds_back_from_where_it_was(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id, heard = await begun(box)
            before = await at_rest(box, execution_id)
            await node.restart()
            after = await at_rest(box, execution_id)
            assert before <= after <= before + LEAD < SIZE
            out, _, _ = await frames(await output(box, execution_id, heard, resume=True))
            assert len(out) == SIZE - heard

    run(scenario())


def test_a_detached_one_is_held_back_by_nobody(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            started = (await box.start("sleep 0.3; head -c 5000000 /dev/zero"))["id"]
            reader = await output(box, started, 0, resume=True)
            await reader.head()  # and it reads no further
            async with asyncio.timeout(20):
                while (await box.call("execution.get", execution_id=started))["state"] == "running":
                    await asyncio.sleep(0.05)
            assert await output_bytes(box, started) == SIZE
            await reader.reset()

    run(scenario())
