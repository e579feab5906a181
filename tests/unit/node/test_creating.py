"""Creates: once, not at all, or cut off, and what they leave; inputs; what a node tells of itself."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from harness import bench
from node_looks import events, nothing_left, until

from bellglass import errors, ids


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


def test_cpus_go_to_the_least_loaded(run) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")

    async def scenario() -> None:
        async with bench() as node:
            one, two = await node.create(cpus=1.0), await node.create(cpus=1.0)
            rows = [node.node.sandboxes.row(box.id, 1) for box in (one, two)]
            assert rows[0].cpu_ids != rows[1].cpu_ids and all(len(row.cpu_ids) == 1 for row in rows)

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
