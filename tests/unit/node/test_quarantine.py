"""A sandbox in quarantine stands still: no execution runs on, no clock ends it, nothing is served."""

from __future__ import annotations

import asyncio
import json

import pytest
from harness import bench

from bellglass import errors

COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"


async def written(box, execution_id: str) -> int:
    return (await box.call("execution.get", execution_id=execution_id))["output_bytes"]


async def grows(box, execution_id: str, seconds: float) -> bool:
    before = await written(box, execution_id)
    await asyncio.sleep(seconds)
    return await written(box, execution_id) > before


def test_it_stands_still_and_goes_on_where_it_stood(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create(lifetime_s=2.0, idle_timeout_s=None)
            counting = (await box.start(COUNT))["id"]
            live = node.node.sandboxes.live(box.id, 1)
            async with asyncio.timeout(5):
                while not await written(box, counting):
                    await asyncio.sleep(0.01)
            for _ in range(2):
                answer = await box.call("sandbox.quarantine")
            assert set(answer) == {"quarantined_at", "project_id", "spec", "about"}
            assert (answer["project_id"], answer["spec"]["template"]) == ("pj", "base")
            await asyncio.sleep(0.3)  # what was on its way
            stood = live.executions.running[counting].log.total_bytes
            await asyncio.sleep(2.0)
            assert live.executions.running[counting].log.total_bytes == stood, "it runs on"
            assert node.node.sandboxes.row(box.id, 1).state == "running", (
                "its lifetime is over, were its clock not stopped"
            )
            for op, more in (
                ("file.stat", {"path": "/"}), ("sandbox.update", {"lifetime_s": 60.0}),
                ("execution.create", {"execution_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "spec": box.spec("true")}),
            ):  # fmt: skip
                with pytest.raises(errors.Conflict, match="quarantine"):
                    await box.call(op, **more)
            await node.restart()
            live = node.node.sandboxes.live_table[box.id]
            await asyncio.sleep(0.3)
            stood = live.executions.running[counting].log.total_bytes
            await asyncio.sleep(0.5)
            assert live.executions.running[counting].log.total_bytes == stood, "the next node lets it run on"
            (item,) = (await node.link.call("sandbox.list", {}))["sandboxes"]
            assert item["quarantined_at"] == answer["quarantined_at"]

            released = await box.call("sandbox.release", project_id="pjother")
            assert await grows(box, counting, 0.3), "it does not go on"
            row = node.node.sandboxes.row(box.id, 1)
            assert (row.project_id, row.quarantined_at_unix) == ("pjother", None) and released["expires_at"]
            assert await box.call("sandbox.release") == released, "safe to repeat"
            with pytest.raises(errors.SandboxGone, match="lifetime"):
                async with asyncio.timeout(10):
                    while True:
                        await box.exec("true")
            lines = json.loads(await box.body("execution.output", execution_id=counting, accept="json"))[
                "stdout"
            ].split()
            assert lines == [str(n + 1) for n in range(len(lines))], "the same process, nothing lost"

    run(scenario())


def test_a_quarantined_one_can_be_deleted(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            await box.start(COUNT)
            await box.call("sandbox.quarantine")
            assert (await node.delete(box))["ended_at"]
            await node.node.sandboxes.wait_reclaimed()
            assert node.node.sandboxes.row(box.id, 1).reclaimed
            with pytest.raises(errors.NotFound):
                await node.link.call("sandbox.quarantine", {"sandbox_id": box.id, "generation": 2})

    run(scenario())


def test_what_the_server_said_at_the_create_is_kept_for_it(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            about = {"name": "a", "labels": {"x": "y"}}
            sandbox_id = "sb" + "a" * 20
            params = {"sandbox_id": sandbox_id, "generation": 1, "project_id": "pj", "spec": node.sandbox_spec()}
            await node.link.call("sandbox.create", params | {"about": about})
            await node.restart()
            (item,) = (await node.link.call("sandbox.list", {}))["sandboxes"]
            assert "about" not in item and "spec" not in item, "a list is short"
            await node.link.call("sandbox.quarantine", {"sandbox_id": sandbox_id, "generation": 1})
            (item,) = (await node.link.call("sandbox.list", {}))["sandboxes"]
            assert item["about"] == about

    run(scenario())


def test_one_that_could_not_be_frozen_is_not_told_to_stand_still(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            counting = (await box.start(COUNT))["id"]
            live = node.node.sandboxes.live(box.id, 1)
            groups, live.groups = live.groups, Broken()
            with pytest.raises(errors.InternalError):
                await box.call("sandbox.quarantine")
            assert node.node.sandboxes.row(box.id, 1).quarantined_at_unix is None
            live.groups = groups
            await box.call("sandbox.quarantine")
            await asyncio.sleep(0.3)
            stood = live.executions.running[counting].log.total_bytes
            await asyncio.sleep(0.5)
            assert live.executions.running[counting].log.total_bytes == stood

    run(scenario())


class Broken:
    def freeze(self, *, frozen: bool) -> None:
        raise OSError("the kernel said no")
