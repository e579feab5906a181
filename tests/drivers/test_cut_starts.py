"""Starts that are cancelled, abandoned or killed in their middle: a reclaim takes all of them away."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bellglass import ids
from bellglass.errors import InternalError
from bellglass.node.drivers.runc import RuncDriver
from tests.drivers.machine_traces import traces

pytestmark = pytest.mark.usefixtures("clean")


def cancel_at(rig: Any, delay_s: float) -> str:
    async def act() -> str:
        spec = rig.spec()
        task = asyncio.ensure_future(rig.driver.create(spec))
        await asyncio.sleep(delay_s)
        task.cancel()
        try:
            handle = await task
            await handle.reclaim()
        except asyncio.CancelledError:
            pass
        return spec.sandbox_id

    return rig.run(act())


@pytest.mark.parametrize("delay_ms", [0, 2, 5, 10, 20, 30, 40, 60])
def test_a_cancelled_create_leaves_nothing(rig: Any, delay_ms: int) -> None:
    assert traces(rig, cancel_at(rig, delay_ms / 1000)) == []


def test_a_reclaim_never_overtakes_the_lease_before_it(rig: Any) -> None:
    """A lease that nobody waits for any more is still to be done when the reclaim behind it comes."""

    async def both(sandbox_id: str) -> None:
        call = rig.driver._helper.call
        await asyncio.gather(call("lease_uids", sandbox_id=sandbox_id), call("reclaim_machine", sandbox_id=sandbox_id))

    async def crowd(many: list[str]) -> None:
        await asyncio.gather(*map(both, many))

    sandbox_ids = [ids.new_sandbox_id() for _ in range(40)]
    rig.run(crowd(sandbox_ids))
    assert [trace for sandbox_id in sandbox_ids for trace in traces(rig, sandbox_id)] == []


@pytest.mark.parametrize("delay_ms", [1, 5, 15, 30, 45])
def test_the_node_dies_in_the_middle_of_a_start(rig: Any, delay_ms: int) -> None:
    """The helper's child finishes alone; the next node's reclaim waits for it and takes all away."""
    sandbox_id = rig.run(_abandon(rig, delay_ms / 1000))
    rig.stop_helper()
    rig.start_helper()
    rig.run(rig.driver.reclaim_leftovers(sandbox_id))
    assert traces(rig, sandbox_id) == []


async def _abandon(rig: Any, delay_s: float) -> str:
    spec = rig.spec()
    driver: RuncDriver = rig.driver
    task = asyncio.ensure_future(driver.create(spec))
    await asyncio.sleep(delay_s)
    real, driver.reclaim_leftovers = driver.reclaim_leftovers, _nothing  # type: ignore[method-assign]
    task.cancel()
    await asyncio.wait([task])
    driver.reclaim_leftovers = real  # type: ignore[method-assign]
    return spec.sandbox_id


async def _nothing(_: str) -> None:
    return


@pytest.mark.parametrize("delay_ms", [3, 10, 20, 35, 50])
def test_a_start_that_is_killed(rig: Any, delay_ms: int) -> None:
    """SIGKILL to the helper's child wherever it is: its operation fails, and a reclaim takes all away."""

    async def act() -> str:
        spec = rig.spec()
        task = asyncio.ensure_future(rig.driver.create(spec))
        await asyncio.sleep(delay_ms / 1000)
        for pid in _children(rig.helper.pid):
            os.kill(pid, signal.SIGKILL)
        try:
            handle = await task
        except InternalError as error:
            assert "died" in str(error)
            return spec.sandbox_id
        try:
            await handle.reclaim()
        except InternalError as error:  # its worker was among the killed
            assert "died" in str(error)
            await handle.reclaim()
        return spec.sandbox_id

    assert traces(rig, rig.run(act())) == []


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
