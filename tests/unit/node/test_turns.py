"""Starts take turns: in order, the sandboxes in a circle, and nobody keeps a turn from the others for long."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from harness import bench

from bellglass.errors import Conflict, LimitExceeded
from bellglass.node.executions.turns import StartKnown, Turns

NEVER_S = 1000.0


class Starts:
    """Starts of sandboxes named by letters, each with a turn until it is told to let go."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def add(self, name: str) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.get_running_loop().create_task(self._start(name))
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def _start(self, name: str) -> None:
        async with self.turns.of(name[0]):
            self.begun.append(name)
            await self._ends[name].wait()


def test_sandboxes_take_turns_in_a_circle(run) -> None:
    async def scenario() -> None:
        starts = Starts(Turns(2, NEVER_S))
        for name in ("a1", "a2", "a3", "a4", "a5", "b1", "c1", "c2"):
            await starts.add(name)
        assert starts.begun == ["a1", "a2"]
        for name in ("a1", "a2", "a3", "b1", "c1", "a4", "c2", "a5"):
            await starts.end(name)
        assert starts.begun == ["a1", "a2", "a3", "b1", "c1", "a4", "c2", "a5"]
        await starts.add("d1")
        await starts.add("d2")
        assert starts.begun[-2:] == ["d1", "d2"], "both places are free again"
        await starts.end("d1")
        await starts.end("d2")

    run(scenario())


def test_a_turn_ends_by_itself(run) -> None:
    async def scenario() -> None:
        turns = Turns(1, 0.05)
        starts = Starts(turns)
        await starts.add("a1")
        await starts.add("b1")
        assert starts.begun == ["a1"]
        async with turns.of("c"):
            assert starts.begun == ["a1", "b1"]
        await starts.end("a1")
        await starts.end("b1")
        async with turns.of("d"):  # one place again, not three
            await starts.add("e1")
            assert starts.begun == ["a1", "b1"]
        await starts.end("e1")

    run(scenario())


def test_who_lets_a_turn_run_out_takes_none_until_it_answers(run) -> None:
    async def scenario() -> None:
        turns = Turns(1, 0.05)
        mute = Starts(turns)
        late = StartKnown()
        async with turns.of("a") as turn:
            late.keep(turn)
            for name in ("a1", "a2"):
                await mute.add(name)
            async with turns.of("b"):  # once a's turn has run out
                assert mute.begun == ["a1", "a2"], "who waited needs none any more"
                await mute.add("a3")
                assert mute.begun[2:] == ["a3"]
                late.set()
                await mute.add("a4")
                assert mute.begun[3:] == ["a4"], "that it never started is no answer"
            again = StartKnown()
            async with turns.of("a") as turn:
                again.keep(turn)
            again.set(answered=True)
            async with turns.of("b"):
                await mute.add("a5")
                assert len(mute.begun) == 4, "it takes turns again"
        for name in ("a1", "a2", "a3", "a4", "a5"):
            await mute.end(name)
        assert turns._free == 1

    run(scenario())


def test_a_turn_is_over_when_the_start_is_known(run) -> None:
    async def scenario() -> None:
        turns = Turns(1, NEVER_S)
        starts = Starts(turns)
        known = StartKnown()
        async with turns.of("a") as turn:
            known.keep(turn)
        await starts.add("b1")
        assert starts.begun == [], "the block has ended, the start is still unknown"
        known.set()
        known.set()
        await starts.end("b1")
        async with turns.of("a") as turn:
            known.keep(turn)  # it was known at once
        await starts.add("b2")
        await starts.end("b2")
        assert starts.begun == ["b1", "b2"]

    run(scenario())


def test_who_leaves_the_queue_takes_no_turn_with_him(run) -> None:
    async def scenario() -> None:
        turns = Turns(1, NEVER_S)
        starts = Starts(turns)
        for name in ("a1", "b1", "b2", "c1"):
            await starts.add(name)
        starts.tasks["b1"].cancel()
        await asyncio.sleep(0)
        await starts.end("a1")
        assert starts.begun == ["a1", "b2"]
        await starts.end("b2")
        await starts.end("c1")
        async with turns.of("a") as turn:
            await starts.add("d1")
            turn.over()  # it is called now,
            starts.tasks["d1"].cancel()  # and leaves before it has heard of it
        await starts.add("e1")
        assert starts.begun == ["a1", "b2", "c1", "e1"]
        await starts.end("e1")

    run(scenario())


def test_all_ways_that_a_start_ends_give_the_turn_back(run) -> None:
    async def scenario() -> None:
        async with bench(**{"node.max_executions": 1}) as node:
            node.node.turns = Turns(1, NEVER_S)
            box = await node.create()
            assert (await box.exec(["/no/such/program"]))["execution"]["exit_code"] == 127
            long = await box.start("sleep 31006")
            with pytest.raises(LimitExceeded):
                await box.exec("true")
            again = await box.start("sleep 31006", execution_id=long["id"])
            assert again["pid"] == long["pid"]
            await box.call("execution.signal", execution_id=long["id"], signal="SIGKILL", scope="tree")
            async with asyncio.timeout(20):
                while (await box.call("execution.get", execution_id=long["id"]))["state"] == "running":
                    await asyncio.sleep(0.01)
            assert (await box.exec("true"))["execution"]["exit_code"] == 0
            gone = await node.create()
            await node.delete(box)
            assert (await gone.exec("true"))["execution"]["exit_code"] == 0

    run(scenario())


def test_one_that_exists_is_answered_while_all_turns_are_taken(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            node.node.turns = Turns(1, NEVER_S)
            box = await node.create()
            runs, done = await box.start("sleep 31007"), await box.start("true")
            async with asyncio.timeout(20):
                while (await box.call("execution.get", execution_id=done["id"]))["state"] == "running":
                    await asyncio.sleep(0.01)
            async with node.node.turns.of("another"):
                waits = asyncio.ensure_future(box.start("true"))
                async with asyncio.timeout(20):
                    assert (await box.start("sleep 31007", execution_id=runs["id"]))["pid"] == runs["pid"]
                    assert (await box.start("true", execution_id=done["id"]))["exit_code"] == 0
                    with pytest.raises(Conflict):
                        await box.start("false", execution_id=runs["id"])
                assert not waits.done()
            await waits

    run(scenario())


def test_an_agent_that_answers_no_start_delays_nobody_for_long(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            node.node.turns = Turns(1)
            mute, neighbour = await node.create(), await node.create()
            pid = node.node.sandboxes.live(mute.id, 1).handle.pid
            assert (await mute.exec("true"))["execution"]["exit_code"] == 0
            os.kill(pid, signal.SIGSTOP)
            try:
                waiting = [asyncio.get_running_loop().create_task(mute.exec("true")) for _ in range(20)]
                async with asyncio.timeout(20):
                    for _ in range(3):
                        assert (await neighbour.exec("true"))["execution"]["exit_code"] == 0
                assert not any(task.done() for task in waiting)
            finally:
                os.kill(pid, signal.SIGCONT)
            async with asyncio.timeout(30):
                assert [result["execution"]["exit_code"] for result in await asyncio.gather(*waiting)] == [0] * 20

    run(scenario())
