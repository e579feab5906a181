"""A machine from create to reclaim: what is told of its end; nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bellglass.errors import AgentLost
from bellglass.node.drivers.runc import PROBE_ID
from bellglass.node.helper import cgroup
from bellglass.wire.guest import GuestType
from tests.drivers.machine_traces import traces

MIB = 2**20
pytestmark = pytest.mark.usefixtures("clean")


def test_create_destroy_reclaim(rig: Any) -> None:
    machine = rig.create()
    sandbox_id, pid = machine.handle.sandbox_id, machine.pid
    assert machine.agent.shell("echo up") == "up\n"
    seen = traces(rig, sandbox_id)
    assert len(seen) >= len(cgroup.layout().hierarchies) + 4, "the test sees what a machine has"
    assert not [line for line in seen if " ext4 " in line or " overlay " in line], "no mount in the host's table"
    waiting = asyncio.ensure_future(machine.handle.wait(), loop=rig.runner.get_loop())
    machine.agent.link.close()
    began = time.monotonic()
    rig.run(machine.handle.destroy())
    assert time.monotonic() - began < 1
    assert not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
    assert rig.run(asyncio.wait_for(waiting, 5)) == "exited"
    rig.run(machine.handle.destroy())
    rig.run(machine.handle.reclaim())
    assert traces(rig, sandbox_id) == []
    rig.run(machine.handle.reclaim())
    rig.run(machine.handle.destroy())


def test_processes_that_hide_die_too(rig: Any) -> None:
    with rig.machine() as machine:
        script = "setsid nohup sleep 1000 >/dev/null 2>&1 & setsid sh -c '(sleep 1001 &)'; setsid setsid sleep 1003 &"
        assert machine.agent.shell(script + " true") == ""
        pids = (cgroup.layout().group(cgroup.group_name(rig.installation, machine.handle.sandbox_id))).rglob(
            "cgroup.procs"
        )
        alive = [int(pid) for file in pids for pid in file.read_text().split()]
        assert len(alive) >= 4
        rig.run(machine.handle.destroy())
        assert [pid for pid in alive if _runs(pid)] == []


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_what_dies_is_not_held_up_by_limits(rig: Any) -> None:
    """Lifting them is a thing of the dead: it kills first, and a living machine can't be given more by it."""
    with rig.machine(cpus=0.1) as machine:
        name = cgroup.group_name(rig.installation, machine.handle.sandbox_id)
        files = [h / name / file for h in cgroup.layout().hierarchies for file in ("cpu.cfs_quota_us", "cpu.max")]
        bounds = [file for file in files if file.exists()]
        assert len(bounds) == 1 and not bounds[0].read_text().startswith(("-1", "max")), "it has a limit"
        rig.run(machine.handle.hasten_end())
        assert bounds[0].read_text().startswith(("-1", "max"))
        assert rig.run(asyncio.wait_for(machine.handle.wait(), 5)) == "exited"
        rig.run(machine.handle.hasten_end())
    assert traces(rig, machine.handle.sandbox_id) == []


def test_wait_tells_that_the_agent_ended(rig: Any) -> None:
    with rig.machine() as machine:
        os.kill(machine.pid, signal.SIGKILL)
        assert rig.run(asyncio.wait_for(machine.handle.wait(), 5)) == "exited"


def test_wait_tells_that_memory_ran_out(rig: Any) -> None:
    with rig.machine(memory_bytes=64 * MIB) as machine:
        program = "import os, time; os.fork(); time.sleep(0.5); b'x' * (1 << 30)"
        machine.agent.start("python3", "-c", program, oom_score_adj=0)
        while machine.agent.frame().type != GuestType.STARTED:
            continue
        # Make the agent the kernel's first choice, which it else would never be.
        Path(f"/proc/{machine.pid}/oom_score_adj").write_text("1000")
        assert rig.run(asyncio.wait_for(machine.handle.wait(), 20)) == "oom"


def test_the_agent_dials_again(rig: Any) -> None:
    with rig.machine() as machine:
        first = machine.agent.hello
        machine.agent.link.close()
        second = type(machine.agent)(rig.link(machine.handle), machine.handle.groups)
        assert (second.hello.boot_id, second.hello.epoch) == (first.boot_id, first.epoch + 1)
        assert second.shell("echo again") == "again\n"
        second.link.close()


def test_no_agent_no_link(rig: Any) -> None:
    with rig.machine() as machine:
        os.kill(machine.pid, signal.SIGKILL)
        machine.agent.link.close()
        with pytest.raises(AgentLost, match=machine.handle.sandbox_id):
            rig.link(machine.handle, 0.2)


def test_recover(rig: Any) -> None:
    """A node that starts again finds the machine by its state; one that died meanwhile is told as dead."""
    machine = rig.create()
    state = machine.handle.state()
    machine.agent.link.close()
    rig.stop_helper()
    rig.start_helper()
    handle = rig.run(rig.driver.recover(machine.handle.sandbox_id, state))
    assert handle is not None and handle.state() == state
    agent = type(machine.agent)(rig.link(handle), handle.groups)
    assert agent.shell("echo survived") == "survived\n"
    agent.link.close()
    wrong = state.replace(b'"start_ticks": ', b'"start_ticks": 9')
    assert rig.run(rig.driver.recover(machine.handle.sandbox_id, wrong)) is None, "another process has the pid"
    rig.run(handle.destroy())
    assert rig.run(rig.driver.recover(machine.handle.sandbox_id, state)) is None
    rig.run(rig.driver.reclaim_leftovers(machine.handle.sandbox_id))
    assert traces(rig, machine.handle.sandbox_id) == []


def test_a_probe_that_a_crash_cut_off(rig: Any) -> None:
    """Its machine is in no journal: the next node takes it away when it opens the driver."""
    machine = rig.create(sandbox_id=PROBE_ID)
    machine.agent.link.close()
    assert traces(rig, PROBE_ID)
    rig.stop_helper()
    rig.start_helper()
    assert traces(rig, PROBE_ID) == []
    report = rig.run(rig.driver.probe())
    assert (report.usable, report.tier, report.runtime, report.reason) == (True, "container", "runc", None)
    assert traces(rig, PROBE_ID) == []


def test_a_probe_without_a_template(rig: Any, tmp_path: Path) -> None:
    rig.driver._templates_dir, real = tmp_path, rig.driver._templates_dir
    rig.driver._report = None
    try:
        report = rig.run(rig.driver.probe())
    finally:
        rig.driver._templates_dir = real
    assert (report.usable, report.hint) == (False, "make template")
    assert str(tmp_path) in report.reason
    assert rig.run(rig.driver.probe()).usable, "what was missing may come later"


def test_reclaim_of_what_never_was(rig: Any) -> None:
    rig.run(rig.driver.reclaim_leftovers(rig.spec().sandbox_id))


def test_many_at_once(rig: Any) -> None:
    async def one() -> str:
        handle = await rig.driver.create(rig.spec(memory_bytes=64 * MIB))
        await handle.destroy()
        await handle.reclaim()
        return handle.sandbox_id

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(one() for _ in range(12)))

    for sandbox_id in rig.run(all_of_them()):
        assert traces(rig, sandbox_id) == []
    parent = f"bellglass-{rig.installation}"
    assert [h for h in cgroup.layout().hierarchies if (h / parent).exists()] == []
