"""Create, end, restart: what is left, what is told, and what goes on."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from pathlib import Path

import pytest
from harness import bench, frames

from bellglass import errors, ids


async def events(node, after: int = 0) -> list[dict]:
    return [json.loads(event.line()) for event in await node.node.journal.events(after)]


async def until(condition, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def nothing_left(node, sandbox_id: str) -> bool:
    scratch = [p for p in Path("/tmp").glob("bgfake-*/sandbox") if p.read_text() == sandbox_id]
    groups = Path(f"/sys/fs/cgroup/unified/bgfake-{sandbox_id}")
    return not (
        scratch
        or groups.exists()
        or (node.data.inputs_dir / sandbox_id).exists()
        or (node.data.executions_dir / sandbox_id).exists()
    )


def test_create_is_idempotent_and_delete_can_be_repeated(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            sandbox_id = ids.new_sandbox_id()
            files = {"data/a.txt": {"text": "é"}, "b.bin": {"b64": "AAE="}}
            one, two = await asyncio.gather(
                node.create(sandbox_id=sandbox_id, inputs=files), node.create(sandbox_id=sandbox_id, inputs=files)
            )
            assert len((await node.link.call("sandbox.list", {}))["sandboxes"]) == 1
            folder = node.data.inputs_dir / sandbox_id
            assert (folder / "data/a.txt").read_text() == "é" and (folder / "b.bin").read_bytes() == b"\0\1"
            assert (folder / "b.bin").stat().st_mode & 0o777 == 0o444
            assert (await one.exec("echo hi"))["stdout"] == "hi\n"
            ended = await asyncio.gather(*(node.delete(two) for _ in range(10)))
            assert len({answer["ended_at"] for answer in ended}) == 1 and ended[0]["ended_at"]
            with pytest.raises(errors.SandboxGone) as gone:
                await one.exec("true")
            assert gone.value.details["reason"] == "user" and gone.value.details["ended_at"]
            await until(lambda: nothing_left(node, sandbox_id))
            await node.node.sandboxes.wait_reclaimed()
            assert [event["kind"] for event in await events(node)] == [
                "sandbox.started",
                "sandbox.ended",
                "sandbox.reclaimed",
            ]
            unknown = {"sandbox_id": ids.new_sandbox_id(), "generation": 1}
            assert await node.link.call("sandbox.delete", unknown) == {"ended_at": None}
            with pytest.raises(errors.NotFound):
                await node.link.call("sandbox.update", unknown)
            with pytest.raises(errors.NotFound):
                await node.link.call("execution.list", {"sandbox_id": sandbox_id, "generation": 2})

    run(scenario())


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        ({"create": "NoCapacity"}, errors.NoCapacity),
        ({"create": "SandboxFailed"}, errors.SandboxFailed),
        ({"connect": "hang"}, errors.SandboxFailed),
        ({"connect": "hang", "die_after_s": 0.0}, errors.SandboxFailed),
    ],
)
def test_failed_creates_leave_nothing(run, monkeypatch, faults, kind) -> None:
    from bellglass.node import creating

    monkeypatch.setattr(creating, "HELLO_DEADLINE_S", 0.3)

    async def scenario() -> None:
        async with bench(faults=faults) as node:
            sandbox_id = ids.new_sandbox_id()
            with pytest.raises(kind):
                await node.create(sandbox_id=sandbox_id, inputs={"a": {"text": "b"}})
            assert nothing_left(node, sandbox_id)
            assert (await node.link.call("sandbox.list", {}))["sandboxes"] == []
            assert node.node.sandboxes.admission.report()["sandboxes"] == 0
            assert await node.node.journal.sandboxes() == []
            node.driver.faults.clear()
            box = await node.create(sandbox_id=sandbox_id)
            assert (await box.exec("echo hi"))["stdout"] == "hi\n"

    run(scenario())


def test_delete_during_create_leaves_nothing(run) -> None:
    async def scenario() -> None:
        async with bench(faults={"create_delay_s": 0.3}) as node:
            sandbox_id = ids.new_sandbox_id()
            making = asyncio.create_task(node.create(sandbox_id=sandbox_id))
            await until(lambda: any(row.id == sandbox_id for row in node.node.sandboxes.rows()))
            ref = {"sandbox_id": sandbox_id, "generation": 1}
            ended = await asyncio.gather(*[node.link.call("sandbox.delete", ref) for _ in range(5)])
            assert len({one["ended_at"] for one in ended}) == 1 and ended[0]["ended_at"], "all waited for the one lock"
            await making
            await until(lambda: nothing_left(node, sandbox_id))

    run(scenario())


def test_a_caller_that_goes_away_does_not_cut_off_create_or_delete(run) -> None:
    async def scenario() -> None:
        async with bench(faults={"create_delay_s": 0.2, "destroy_delay_s": 0.2}) as node:
            sandbox_id = ids.new_sandbox_id()
            params = {"sandbox_id": sandbox_id, "generation": 1, "spec": node.sandbox_spec()}
            stream = await node.link.open("sandbox.create", params, body=False)
            await asyncio.sleep(0.05)
            await stream.reset()
            await until(lambda: any(row.state == "running" for row in node.node.sandboxes.rows()))
            stream = await node.link.open("sandbox.delete", {"sandbox_id": sandbox_id, "generation": 1}, body=False)
            await asyncio.sleep(0.05)
            await stream.reset()
            await until(lambda: nothing_left(node, sandbox_id))

    run(scenario())


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


def test_cpus_go_to_the_least_loaded(run) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")

    async def scenario() -> None:
        async with bench() as node:
            one, two = await node.create(cpus=1.0), await node.create(cpus=1.0)
            rows = [node.node.sandboxes.row(box.id, 1) for box in (one, two)]
            assert rows[0].cpu_ids != rows[1].cpu_ids and all(len(row.cpu_ids) == 1 for row in rows)

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


@pytest.mark.parametrize("name", ["../x", "/abs", "a/../../b", "", "a\0b", "a//b", "./a", "a/", "x" * 300, "\udc80"])
def test_inputs_stay_in_their_folder(run, name) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await node.create(inputs={"fine/name.txt": {"text": "x"}})
            sandbox_id = ids.new_sandbox_id()
            with pytest.raises(errors.InvalidRequest):
                await node.create(sandbox_id=sandbox_id, inputs={name: {"text": "x"}})
            assert nothing_left(node, sandbox_id)

    run(scenario())


def test_inputs_that_find_no_room_leave_nothing(run, monkeypatch) -> None:
    async def scenario() -> None:
        async with bench() as node:
            write = Path.write_bytes

            def full(path: Path, data: bytes) -> int:
                if path.name == "second":
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write(path, data)

            monkeypatch.setattr(Path, "write_bytes", full)
            sandbox_id = ids.new_sandbox_id()
            with pytest.raises(errors.NoCapacity) as caught:
                await node.create(sandbox_id=sandbox_id, inputs={"first": {"text": "x"}, "second": {"text": "x"}})
            assert caught.value.details["resource"] == "disk"
            assert nothing_left(node, sandbox_id)
            await node.create(inputs={"first": {"text": "x"}})

    run(scenario())


def test_inputs_have_a_size(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await node.create(inputs={"big": {"text": "x" * (8 * 2**20)}})
            with pytest.raises(errors.TooLarge):
                await node.create(inputs={"big": {"text": "x" * (8 * 2**20 + 1)}})
            with pytest.raises(errors.InvalidRequest, match="below"):
                await node.create(inputs={"a": {"text": "x"}, "a/b": {"text": "y"}})

    run(scenario())


def test_node_info(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await node.create()
            info = await node.link.call("node.info", {})
            assert info["node_id"] == (await node.link.call("node.info", {}))["node_id"]
            assert info["tiers"][0]["usable"] is True and info["templates"][0]["name"] == "base"
            assert info["capacity"]["sandboxes"] == 1 and info["capacity"]["memory_committed_bytes"] == 256 * 2**20
            with pytest.raises(errors.NotFound, match="no operation"):
                await node.link.call("node.unheard_of", {})

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
