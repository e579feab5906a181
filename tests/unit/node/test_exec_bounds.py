"""How many executions run at once, and what is kept of finished ones."""

from __future__ import annotations

import pytest
from harness import bench

from bellglass.errors import LimitExceeded


def test_executions_at_once_are_limited(run) -> None:
    async def scenario() -> None:
        async with bench(**{"node.max_executions": 3}) as node:
            box = await node.create()
            for _ in range(3):
                await box.start("sleep 31005")
            with pytest.raises(LimitExceeded, match="at once is 3"):
                await box.exec("true")

    run(scenario())


def test_logs_of_finished_ones_have_a_size_together(run) -> None:
    async def scenario() -> None:
        async with bench(**{"node.log_limit": 4 * 2**20}) as node:
            box = await node.create()
            for _ in range(24):
                await box.exec("head -c 3500000 /dev/zero")
            folder = node.node.sandboxes.log_folder(box.id)
            assert sum(path.stat().st_size for path in folder.iterdir()) < 17 * 4 * 2**20
            kept = (await box.call("execution.list"))["executions"]
            assert 10 < len(kept) < 24

    run(scenario())


def test_finished_ones_are_kept_up_to_a_number(run) -> None:
    async def scenario() -> None:
        async with bench(**{"node.execution_retention": 5}) as node:
            box = await node.create()
            for number in range(8):
                await box.exec(f"echo {number}")
            listed = (await box.call("execution.list"))["executions"]
            assert len(listed) == 5
            logs = [path.name.split(".")[0] for path in node.node.sandboxes.log_folder(box.id).iterdir()]
            assert {name for name in logs if name != "timeline"} == {row["id"] for row in listed}

    run(scenario())
