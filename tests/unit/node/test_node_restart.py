"""A node that is restarted, and a link to the agent that breaks: what goes on, what is settled."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from harness import bench, frames
from node_looks import events, nothing_left

from bellglass import errors, ids
from bellglass.node.drivers.fake_groups import alive


def test_a_restarted_node_goes_on(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            done = (await box.exec("echo finished before"))["execution"]
            started = await box.start("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done; exit 7")
            quiet = await box.start("sleep 0.6; echo quiet")
            timed = await box.start("sleep 31106", timeout_s=1.5)
            await asyncio.sleep(0.3)
            await node.restart()
            assert (await box.exec("echo and on"))["stdout"] == "and on\n"
            raw = await box.body("execution.output", execution_id=started["id"], follow=True, accept="json")
            result = json.loads(raw)
            assert result["stdout"] == "".join(f"{i}\n" for i in range(1, 9)), "nothing lost, nothing twice"
            assert result["execution"]["exit_code"] == 7
            raw = await box.body("execution.output", execution_id=quiet["id"], follow=True, accept="json")
            assert json.loads(raw)["stdout"] == "quiet\n"
            raw = await box.body("execution.output", execution_id=timed["id"], follow=True, accept="json")
            assert json.loads(raw)["execution"]["timed_out"] is True
            raw = await box.body("execution.output", execution_id=done["id"], accept="json")
            assert json.loads(raw)["stdout"] == "finished before\n"

    run(scenario())


def test_output_and_exit_while_the_node_is_away_are_not_lost(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            started = await box.start("sleep 0.3; seq 1 20000; exit 3")
            await node.stop()
            await asyncio.sleep(0.8)
            await node.start()
            raw = await box.body("execution.output", execution_id=started["id"], follow=True, accept="json")
            result = json.loads(raw)
            assert result["stdout"] == "".join(f"{i}\n" for i in range(1, 20001))
            assert result["execution"]["exit_code"] == 3

    run(scenario())


def test_a_dead_machine_is_node_lost_after_a_restart(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            started = await box.start("sleep 31107")
            node.driver.faults["recover"] = "gone"
            await node.restart()
            with pytest.raises(errors.SandboxGone, match="node_lost"):
                await box.exec("true")
            assert (await box.call("execution.get", execution_id=started["id"]))["state"] == "lost"
            await node.node.sandboxes.wait_reclaimed()
            kinds = [(event["kind"], event.get("reason")) for event in await events(node)]
            assert ("sandbox.ended", "node_lost") in kinds and ("sandbox.reclaimed", None) in kinds
            for pid in Path(f"/sys/fs/cgroup/unified/bgfake-{box.id}").glob("*/cgroup.procs"):
                assert not pid.read_text()

    run(scenario())


def test_one_that_could_not_be_taken_over_is_dead_when_its_delete_answers(run, monkeypatch) -> None:
    async def refused(sandbox_id: str, state: bytes) -> None:
        raise errors.InternalError("the state of a machine was written by another version of the driver")

    async def scenario() -> None:
        async with bench() as node:
            box, other = await node.create(), await node.create()
            (handle,) = (handle for handle in node.driver.handles if handle.sandbox_id == box.id)
            await node.stop()
            recover = node.driver.recover
            with monkeypatch.context() as patched:
                patched.setattr(
                    node.driver, "recover", lambda i, state: refused(i, state) if i == box.id else recover(i, state)
                )
                await node.start()
            assert (await other.exec("echo there"))["stdout"] == "there\n"
            with pytest.raises(errors.Conflict, match="could not be taken over"):
                await box.exec("true")
            assert alive(handle.pid, handle._start_ticks)
            assert (await node.delete(box))["ended_at"] and not alive(handle.pid, handle._start_ticks)
            await node.node.sandboxes.wait_reclaimed()
            assert (await node.delete(box))["ended_at"], "again is as good"
            kinds = [event.kind for event in await node.node.journal.events(0) if event.sandbox_id == box.id]
            assert kinds == ["sandbox.started", "sandbox.ended", "sandbox.reclaimed"]

    run(scenario())


@pytest.mark.parametrize("state", ["creating", "ending"])
def test_half_made_and_half_ended_ones_are_settled_at_start(run, state) -> None:
    from dataclasses import replace

    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            row = node.node.sandboxes.row(box.id, 1)
            await node.stop()
            # What the journal of a node that was killed in the middle says.
            from bellglass.node.journal import Journal

            journal = await Journal.open(node.data.journal_file)
            await journal.put(
                replace(row, state="creating", driver_state=row.driver_state)
                if state == "creating"
                else row.ending("user", None)
            )
            journal.close()
            await node.start()
            await node.node.sandboxes.wait_reclaimed()
            if state == "creating":  # it never was, for nobody was told of it
                with pytest.raises(errors.NotFound):
                    node.node.sandboxes.row(box.id, 1)
                assert await node.node.journal.sandboxes() == []
            else:
                row = node.node.sandboxes.row(box.id, 1)
                assert (row.state, row.reason, row.reclaimed) == ("ended", "user", True)
                assert nothing_left(node, box.id)

    run(scenario())


def test_a_link_that_breaks_loses_no_output(run) -> None:
    """The agent's link is cut every so many bytes; the bytes and the outcome are the same."""

    async def scenario() -> None:
        # More than the agent may have unacknowledged on both channels, so that each link gets on.
        async with bench(faults={"drop_link_after_bytes": 900_000}) as node:
            box = await node.create()
            stream = await box.open("seq 1 800000; seq 1 30000 >&2; exit 4", timeout_s=40)
            out, err, others = await frames(stream)
            assert out == b"".join(b"%d\n" % i for i in range(1, 800_001))
            assert err == b"".join(b"%d\n" % i for i in range(1, 30_001))
            assert others[-1].value["exit_code"] == 4
            assert node.node.sandboxes.live(box.id, 1).session.links > 4

    run(scenario())


def test_strays_of_no_sandbox_go_at_start(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            await box.exec("echo kept")
            stray = ids.new_sandbox_id()
            (node.data.executions_dir / stray).mkdir()
            (node.data.inputs_dir / stray).mkdir()
            node.node.records.reserve_stream_ids(stray, 5)
            await node.restart()
            assert nothing_left(node, stray) and stray not in node.node.records.sandbox_ids()
            assert (await box.exec("echo on"))["stdout"] == "on\n"
            assert len((await box.call("execution.list"))["executions"]) == 2

    run(scenario())
