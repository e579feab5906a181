"""The cgroups of executions: made, frozen, killed and removed by the node, within bounds that only root can change."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from bellglass.errors import InternalError
from bellglass.node.helper import cgroup
from bellglass.wire.guest import GuestType

pytestmark = pytest.mark.usefixtures("clean")


def test_groups_of_executions(rig: Any) -> None:
    with rig.machine() as machine:
        groups, agent = machine.handle.groups, machine.agent
        execution_id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
        stream = agent.start("/bin/sh", "-c", "sleep 1000 & sleep 1000", execution_id=execution_id)

        async def wait(timeout_s: float) -> bool:
            return await groups.wait_empty(execution_id, asyncio.get_running_loop().time() + timeout_s)

        while (frame := agent.frame()).type != GuestType.STARTED:
            assert frame.stream == stream
        assert rig.run(wait(0.05)) is False
        with pytest.raises(OSError):
            groups.remove(execution_id)
        groups.freeze(frozen=True)
        state = (groups.root / execution_id / "cgroup.events").read_text
        deadline = time.monotonic() + 5
        while "frozen 1" not in state():
            assert time.monotonic() < deadline
        groups.freeze(frozen=False)
        groups.kill(execution_id)
        assert rig.run(wait(5)) is True
        assert agent.result(stream).signal == 9
        groups.remove(execution_id)
        groups.remove(execution_id)
        groups.kill(execution_id)
        assert rig.run(wait(5)) is True
        assert agent.shell("echo alive") == "alive\n"
        for bad in ("../../x", "", "01ARZ3NDEKTSV4RRFFQ69G5FA/"):
            with pytest.raises(InternalError):
                groups.make(bad)


def test_groups_are_neither_deep_nor_without_number(rig: Any) -> None:
    """Root takes apart what the node made: a node in an attacker's hands makes no tree that is too much for it."""
    with rig.machine(pids=32) as machine:
        group = cgroup.layout().group(cgroup.group_name(rig.installation, machine.handle.sandbox_id))
        (group / "one").mkdir()
        with pytest.raises(BlockingIOError):
            (group / "one" / "two").mkdir()
        made = 1
        with pytest.raises(BlockingIOError):
            while made < 5000:
                (group / f"g{made}").mkdir()
                made += 1
        assert 500 < made < 2000, "enough for every process of the machine, and no more"
        assert (group / "cgroup.max.depth").stat().st_uid == 0, "and the node can't change that"
