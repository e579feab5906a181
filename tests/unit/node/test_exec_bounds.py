"""How many executions run at once, and what is kept of finished ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness import bench
from puppet import PuppetHost, read_frames, spec

from bellglass.ballast import disk_full
from bellglass.errors import LimitExceeded, NoCapacity
from bellglass.wire import tlv
from bellglass.wire.frames import encode
from bellglass.wire.guest import GuestType


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


@pytest.mark.parametrize("is_linked", [True, False])
def test_one_whose_record_finds_no_room_is_none_and_its_id_is_free(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_linked: bool
) -> None:
    """Where it waited for a link, the session ended with it, and the sandbox had no link ever again."""

    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            loop = asyncio.get_running_loop()
            insert, refused = host.records.insert, []

            def full_once(*row: Any) -> None:
                if not refused:
                    refused.append(row)
                    raise disk_full()
                insert(*row)

            monkeypatch.setattr(host.records, "insert", full_once)
            if is_linked:
                agent = await host.agent()
                await host.session.wait_link(loop.time() + 5)
            first, _ = host.executions.create(spec(timeout_s=60.0))
            if not is_linked:
                agent = await host.agent()
            async with asyncio.timeout(5):
                with pytest.raises(NoCapacity):
                    await first.started()
            assert refused and not first.running and not host.executions.running and not first._timers
            again, _ = host.executions.create(spec(timeout_s=60.0))
            *_, start = await read_frames(agent, 3)
            assert (start.type, start.stream) == (GuestType.START, again.id)
            await loop.sock_sendall(agent, encode(GuestType.STARTED, again.id, tlv.put(1, 77)))
            async with asyncio.timeout(5):
                await again.started()
            assert list(host.executions.running.values()) == [again]

    run(scenario())
