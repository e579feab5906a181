"""What ends a sandbox, what is told of it, and whose doing it was."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from harness import bench, frames
from node_looks import events, until

from bellglass import errors


def test_lifetime_and_idle_end_it_with_their_reason(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            short = await node.create(lifetime_s=0.5)
            idle = await node.create(idle_timeout_s=0.5)
            busy = await node.create(idle_timeout_s=0.5)
            await busy.start("sleep 31101")
            stream = await short.open("echo before; sleep 31102", accept="json")
            with pytest.raises(errors.SandboxGone) as gone:
                await stream.head()
            assert gone.value.details["reason"] == "lifetime"
            await asyncio.sleep(1.2)
            with pytest.raises(errors.SandboxGone, match="idle"):
                await idle.exec("true")
            assert (await busy.exec("echo alive"))["stdout"] == "alive\n"
            rows = {row["sandbox_id"]: row for row in (await node.link.call("sandbox.list", {}))["sandboxes"]}
            assert rows[short.id]["termination_reason"] == "lifetime" and rows[short.id]["ended_at"]
            listed = (await short.call("execution.list"))["executions"]
            assert [row["state"] for row in listed] == ["lost"], "its records outlive it"
            raw = await short.body("execution.output", execution_id=listed[0]["id"], accept="json")
            assert json.loads(raw)["stdout"] == "before\n"
            await until(lambda: Path(f"/sys/fs/cgroup/unified/bgfake-{short.id}").exists() is False)

    run(scenario())


def test_clocks_can_be_changed(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create(lifetime_s=1.0, idle_timeout_s=5.0)
            before = time.time()
            answer = await box.call("sandbox.update", lifetime_s=60.0, clear_idle=True)
            assert answer["expires_at"] > "2026"
            row = node.node.sandboxes.row(box.id, 1)
            assert row.idle_timeout_s is None and 59 < row.expires_at_unix - before < 62
            await asyncio.sleep(1.2)
            assert (await box.exec("echo alive"))["stdout"] == "alive\n"

    run(scenario())


@pytest.mark.parametrize(("cause", "reason"), [("exited", "failed"), ("oom", "oom")])
def test_a_machine_that_dies_ends_the_sandbox_truthfully(run, cause, reason) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            stream = await box.open("sleep 31103", accept="frames")
            await stream.head()
            node.driver.faults.update(die_after_s=0.0, die_cause=cause)
            await until(lambda: node.node.sandboxes.row(box.id, 1).state == "ended", 5)
            _, _, others = await frames(stream)
            assert others[-1].type.name == "ERROR", "a lost stream is never an exit code"
            assert others[-1].value["error"]["code"] == "sandbox_gone"
            ended = [event for event in await events(node) if event["kind"] == "sandbox.ended"]
            assert [event["reason"] for event in ended] == [reason]
            await until(lambda: node.node.sandboxes.row(box.id, 1).reclaimed)

    run(scenario())


def test_a_tree_that_outlives_its_kill_takes_the_sandbox_with_it(run) -> None:
    async def scenario() -> None:
        async with bench(faults={"undying_groups": True}) as node:
            box = await node.create()
            # The agent's own kill of the first process's group is a claim: this one left it.
            stream = await box.open("setsid setsid sleep 31104 & sleep 31104", accept="json", timeout_s=0.5)
            with pytest.raises(errors.SandboxGone):
                await stream.head()
            row = node.node.sandboxes.row(box.id, 1)
            assert row.reason == "failed" and "outlived SIGKILL" in row.message

    run(scenario())


def test_oom_is_the_nodes_verdict(run) -> None:
    async def scenario() -> None:
        async with bench(faults={"oom_kills": 0}) as node:
            box = await node.create()
            plain = (await box.exec("kill -9 $$"))["execution"]
            assert (plain["exit_code"], plain["oom_killed"]) == (137, False)
            stream = await box.open("sleep 0.3; kill -9 $$", accept="json")
            await asyncio.sleep(0.1)
            node.driver.faults["oom_kills"] = 1
            killed = json.loads(await stream.read_all(10**6))["execution"]
            assert (killed["exit_code"], killed["oom_killed"], killed["oom_ambiguous"]) == (137, True, False)
            other = await box.start("sleep 31105")
            stream = await box.open("sleep 0.3; kill -9 $$", accept="json")
            await asyncio.sleep(0.1)
            node.driver.faults["oom_kills"] = 2
            killed = json.loads(await stream.read_all(10**6))["execution"]
            assert (killed["oom_killed"], killed["oom_ambiguous"]) == (True, True), other

    run(scenario())


def test_journal_is_followed_and_acknowledged(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            stream = await node.link.open("journal.follow", {"after": 0}, body=False)
            assert (await stream.head())["result"] == {}
            box = await node.create()
            first = json.loads((await anext(aiter(stream))).splitlines()[0])
            assert (first["kind"], first["sandbox_id"], first["generation"]) == ("sandbox.started", box.id, 1)
            assert first["runtime"] == "process" and first["expires_at"]
            await node.link.call("journal.ack", {"through": first["seq"]})
            assert [event["seq"] for event in await events(node)] == [first["seq"]], "kept for a restored database"
            await node.node.journal.forget_events("2999", most=100)
            assert await events(node) == []
            await node.delete(box)
            await node.node.sandboxes.wait_reclaimed()
            assert (await events(node))[0]["seq"] > first["seq"], "numbers are never used again"

    run(scenario())
