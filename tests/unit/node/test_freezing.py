"""A sandbox's executions stand still for as long as there is a reason, and go on as if nothing had been."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness import Box, bench
from node_looks import until

from bellglass.node.drivers.fake_groups import CgroupTrees
from bellglass.node.executions import starting

pytestmark = pytest.mark.skipif(not CgroupTrees.usable(), reason="only root has cgroups to freeze")


def live_of(box: Box) -> Any:
    return box.bench.node.sandboxes.live(box.id, 1)


def test_it_stands_still_until_no_reason_is_left(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            started = await box.start("while :; do echo on; sleep 0.01; done")
            live = live_of(box)
            assert live.not_frozen() == [started["id"]] and not live.frozen
            live.freeze("disk")
            live.freeze("quarantine")
            await until(lambda: live.not_frozen() == [])
            live.thaw("disk")
            live.thaw("disk")
            await asyncio.sleep(0.2)
            assert live.frozen and live.not_frozen() == [], "one reason is left"
            said = (await box.call("execution.get", execution_id=started["id"]))["stdout_bytes"]
            live.thaw("quarantine")
            await until(lambda: live.not_frozen() == [started["id"]])
            async with asyncio.timeout(20):
                while (await box.call("execution.get", execution_id=started["id"]))["stdout_bytes"] <= said:
                    await asyncio.sleep(0.01)
            await box.call("execution.signal", execution_id=started["id"], signal="KILL")

    run(scenario())


def test_a_frozen_one_can_be_killed_and_its_sandbox_deleted(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            one, _ = await box.start("sleep 1000"), await box.start("sleep 1000")
            live = live_of(box)
            live.freeze("disk")
            await until(lambda: live.not_frozen() == [])
            await box.call("execution.signal", execution_id=one["id"], signal="KILL")
            async with asyncio.timeout(20):
                while (record := await box.call("execution.get", execution_id=one["id"]))["state"] == "running":
                    await asyncio.sleep(0.01)
            assert record["signal"] == "SIGKILL"
            async with asyncio.timeout(20):
                await node.delete(box)

    run(scenario())


def test_what_is_frozen_before_its_first_instruction_is_not_lost(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "START_S", 1.0)

    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            live, make = live_of(box), live_of(box).groups.make

            def make_frozen(execution_id: str) -> int:
                descriptor: int = make(execution_id)
                live.freeze("disk")
                return descriptor

            monkeypatch.setattr(live.groups, "make", make_frozen)
            waiting = asyncio.ensure_future(box.exec("echo at last"))
            await asyncio.sleep(2 * starting.START_S)
            assert not waiting.done(), "it waits for longer than a start may take"
            live.thaw("disk")
            assert (await waiting)["stdout"] == "at last\n"

    run(scenario())
