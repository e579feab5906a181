"""Contexts and their runs over restarts of the node, and over what goes away under them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from contexts_bench import SLEEPS, Kernel, in_a_node, new_id, next_line
from harness import Bench

from bellglass import ids
from bellglass.errors import (
    AgentLost,
    Conflict,
    NodeUnavailable,
    SandboxGone,
)
from bellglass.node.contexts import host, run

pytestmark = pytest.mark.usefixtures("attackers_host")


@in_a_node
async def test_contexts_and_their_state_outlive_the_node(kernel: Kernel, node: Bench) -> None:
    one = Kernel(kernel.box, new_id())
    made = await one.create()
    await one.text("x = 'kept'")
    await kernel.text("y = 'too'")
    await node.restart()
    assert await one.text("say(x)") == "kept" and await kernel.text("say(y)") == "too"
    listed = (await one.box.call("context.list"))["contexts"]
    assert next((row["id"], row["execution_id"]) for row in listed) == (made["id"], made["execution_id"])
    await one.call("context.delete")
    await node.restart()
    assert [row["id"] for row in (await one.box.call("context.list"))["contexts"]] == ["python"]


@in_a_node
async def test_a_run_goes_on_over_a_restart_and_is_attached_to_by_its_id(kernel: Kernel, node: Bench) -> None:
    code = "import time; say('a')\nwhile not os.path.exists(cwd + '/go'): time.sleep(0.01)\nsay('b'); ran = 1"
    params = {"run_id": ids.new_ulid()}
    stream = await kernel.open(code, **params)
    line = await next_line(stream)
    while line["type"] != "stdout":
        line = await next_line(stream)
    await node.restart()
    Path(kernel.box.workdir, "go").touch()
    lines = await kernel.lines(code, after=line["offset"], **params)
    assert [line.get("text") for line in lines if line["type"] != "end"] == ["b"] and lines[-1]["status"] == "ok"
    again = await kernel.lines(code, **params)  # the same run, over by now
    assert [line.get("text") for line in again if line["type"] == "stdout"] == ["a", "b"]
    with pytest.raises(Conflict):
        await kernel.lines("other code", **params)
    await node.restart()
    again = await kernel.lines(code, **params)
    assert [line.get("text") for line in again if line["type"] == "stdout"] == ["a", "b"]
    assert again[-1]["run_id"] == params["run_id"]


@in_a_node
async def test_a_run_that_nobody_comes_back_for_is_interrupted(
    kernel: Kernel, node: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kernel.text("x = 7")
    stream = await kernel.open(SLEEPS)
    await next_line(stream)
    monkeypatch.setattr(run, "RETURN_S", 0.3)
    await node.restart()
    assert await asyncio.wait_for(kernel.text("say(str(x))"), 20) == "7"


@in_a_node
async def test_a_sandbox_that_is_deleted_ends_its_runs_with_its_own_error(kernel: Kernel, node: Bench) -> None:
    stream = await kernel.open(SLEEPS)
    await next_line(stream)
    queued = asyncio.create_task(kernel.lines("1"))
    await node.delete(kernel.box)
    last = json.loads((await stream.read_all(2**20)).splitlines()[-1])
    assert last["status"] == "lost" and last["error"]["code"] == "sandbox_gone"
    with pytest.raises((SandboxGone, AgentLost)):
        await queued


@in_a_node
async def test_a_sandbox_that_is_deleted_under_a_create_ends_it_and_leaves_no_row(kernel: Kernel, node: Bench) -> None:
    Path(host.PROGRAM).write_text("#!/bin/sh\nexec sleep 60\n")  # it is never ready
    one = Kernel(kernel.box, new_id())
    creating = asyncio.create_task(one.create())
    while not (live := node.node.sandboxes.running()[0]).executions.running:
        await asyncio.sleep(0.01)
    assert [row.id for row in live.context_rows.of(kernel.box.id)] == [one.id]
    await node.delete(kernel.box)
    with pytest.raises((SandboxGone, AgentLost)):
        await asyncio.wait_for(creating, 20)
    async with asyncio.timeout(20):
        while node.node.records.contexts.of(kernel.box.id):
            await asyncio.sleep(0.01)


@in_a_node
async def test_a_run_that_was_over_in_time_is_not_late_because_the_node_was_away(kernel: Kernel, node: Bench) -> None:
    run_id = ids.new_ulid()
    first = await kernel.lines("x = 7; say('done')", timeout_s=0.3, run_id=run_id)
    assert first[-1]["status"] == "ok" and not first[-1]["timed_out"]
    await asyncio.sleep(0.4)  # its deadline passes
    await node.restart()
    again = await kernel.lines("x = 7; say('done')", timeout_s=0.3, run_id=run_id)
    assert [line["type"] for line in again] == ["started", "stdout", "end"]
    assert again[-1]["status"] == "ok" and not again[-1]["timed_out"] and not again[-1]["interrupted"]
    assert await kernel.text("say(str(x))") == "7"


@in_a_node
async def test_a_host_that_ends_while_nothing_runs_is_told_with_the_next_run(kernel: Kernel) -> None:
    assert not (await kernel.lines("x = 7"))[0]["state_lost"]
    assert not (await kernel.lines("pid = os.getpid(); say(str(pid))"))[0]["state_lost"]
    os.kill(int(await kernel.text("say(str(pid))")), signal.SIGKILL)
    executions = kernel.box.bench.node.sandboxes.running()[0].executions
    while executions.running:
        await asyncio.sleep(0.01)
    lost = await kernel.lines("say(str('x' in globals()))")
    assert lost[0]["state_lost"] and lost[-1]["state_lost"] and lost[1]["text"] == "False"
    assert not (await kernel.buffered("1"))["state_lost"]
    # After an error that told it, and a restart that was asked for, as well: another client may be the next.
    assert (await kernel.lines("os._exit(3)"))[-1]["state_lost"]
    assert [(await kernel.lines("1"))[0]["state_lost"] for _ in range(2)] == [True, False]
    around = {k: v for k, v in kernel.params("").items() if k in ("cwd", "user", "env")}
    await kernel.call("context.restart", **around)
    assert [(await kernel.lines("1"))[0]["state_lost"] for _ in range(2)] == [True, False]


@in_a_node
async def test_a_create_whose_caller_is_gone_before_its_kernel_is_ready_leaves_nothing(kernel: Kernel) -> None:
    slow = Path(host.PROGRAM).read_text()
    Path(host.PROGRAM).write_text("#!/bin/sh\nexec sleep 60\n")  # it is never ready
    one = Kernel(kernel.box, new_id())
    creating = asyncio.create_task(one.create())
    live = kernel.box.bench.node.sandboxes.running()[0]
    while not live.executions.running:
        await asyncio.sleep(0.01)
    creating.cancel()
    async with asyncio.timeout(20):
        while live.executions.running or live.context_rows.of(kernel.box.id):
            await asyncio.sleep(0.01)
    Path(host.PROGRAM).write_text(slow)
    await one.create()
    assert await one.text("say('on')") == "on"


@in_a_node
async def test_a_create_that_a_node_left_half_made_is_undone_by_the_next_and_made_by_its_repeat(
    kernel: Kernel, node: Bench
) -> None:
    one, program = Kernel(kernel.box, new_id()), Path(host.PROGRAM).read_text()
    Path(host.PROGRAM).write_text("#!/bin/sh\nexec sleep 60\n")
    creating = asyncio.create_task(one.create())
    live = node.node.sandboxes.running()[0]
    while not live.executions.running:
        await asyncio.sleep(0.01)
    [half_made] = live.context_rows.of(kernel.box.id)
    await node.restart()
    with pytest.raises((NodeUnavailable, AgentLost)):
        await creating
    Path(host.PROGRAM).write_text(program)
    made = await one.create()
    assert made["execution_id"] != half_made.execution_id
    live = node.node.sandboxes.running()[0]
    assert list(live.executions.running) == [made["execution_id"]]
    assert [row.ready for row in live.context_rows.of(kernel.box.id)] == [True]


@in_a_node
async def test_a_run_whose_code_never_left_a_killed_node_costs_the_kernel_nothing(
    kernel: Kernel, node: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kernel.text("x = 7")
    monkeypatch.setattr(run, "RETURN_S", 0.2)
    monkeypatch.setattr(run, "STOP_S", 0.2)
    begin = run.ContextRun.begin
    monkeypatch.setattr(run.ContextRun, "begin", lambda self, code, env: None)
    async with await kernel.open("x = 8") as stream:
        live = node.node.sandboxes.running()[0]
        while len(live.context_rows.of(kernel.box.id)[0].runs) < 2:
            await asyncio.sleep(0.01)
        await node.restart()
        assert stream.peer_gone == "link"
    monkeypatch.setattr(run.ContextRun, "begin", begin)
    after = await asyncio.wait_for(kernel.lines("say(str(x))"), 20)
    assert [line.get("text") for line in after if line["type"] == "stdout"] == ["7"] and not after[0]["state_lost"]
