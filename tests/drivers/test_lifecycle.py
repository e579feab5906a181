"""A machine from create to reclaim: what is told of its end; nothing is left, also after failures on the way."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bellglass import ids
from bellglass.errors import AgentLost, BellglassError, InternalError, NotFound, SandboxFailed
from bellglass.node.drivers.base import Template
from bellglass.node.drivers.runc import PROBE_ID, RuncDriver
from bellglass.node.helper import cgroup, uids
from bellglass.testing import kernel
from bellglass.wire.guest import GuestType

MIB = 2**20
pytestmark = pytest.mark.usefixtures("clean")


def traces(rig: Any, sandbox_id: str) -> list[str]:
    """Everything on the host that bears the sandbox's name."""
    name = cgroup.group_name(rig.installation, sandbox_id)
    found = [str(h / name) for h in cgroup.layout().hierarchies if (h / name).exists()]
    found += [f"lease {index}"] if (index := uids.find(rig.installation, sandbox_id)) is not None else []
    found += [str(p) for p in (rig.data.sandbox_dir(sandbox_id), rig.data.runc_root / sandbox_id) if p.exists()]
    # The id of a probe is the same in all installations.
    mounts, ours = Path("/proc/self/mounts").read_text().splitlines(), str(rig.data.root)
    found += [line for line in mounts if sandbox_id in line and ours in line]
    found += [device for device, backing in kernel.loop_devices().items() if sandbox_id in backing and ours in backing]
    return found


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


FAILURES: dict[str, tuple[dict[str, Any], type[BellglassError], str]] = {
    "unknown template": ({"template": Template("nosuch", "0" * 64, Path("/"))}, NotFound, "not built"),
    "another digest": ({"template": "same 16"}, NotFound, "another digest"),
    "inputs that are missing": ({"has_inputs": True}, SandboxFailed, "binds"),
    "a cpu that is not there": ({"cpu_ids": (60000,)}, SandboxFailed, "cpuset"),
    "memory that is too little for the runtime": ({"memory_bytes": 16 * MIB}, BellglassError, "."),
    "inodes that do not fit on the disk": ({"disk_bytes": 16 * MIB, "inodes": 2**30}, BellglassError, "mkfs"),
    "a disk over any file's size": ({"disk_bytes": 16 * 2**40, "inodes": 2**20}, BellglassError, "disk"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_start_leaves_nothing(rig: Any, name: str) -> None:
    fields, error, text = FAILURES[name]
    spec = rig.spec()
    if fields.get("template") == "same 16":
        wrong = dataclasses.replace(spec.template, digest=spec.template.digest[:16] + "0" * 48)
        fields = {"template": wrong}
    spec = dataclasses.replace(spec, **fields)
    if name.startswith("memory"):
        try:
            handle = rig.run(rig.driver.create(spec))
        except error:
            assert traces(rig, spec.sandbox_id) == []
        else:  # it was enough after all
            rig.run(handle.destroy())
            rig.run(handle.reclaim())
        return
    with pytest.raises(error, match=text):
        rig.run(rig.driver.create(spec))
    assert traces(rig, spec.sandbox_id) == []


def test_inputs_behind_a_symbolic_link_are_refused(rig: Any) -> None:
    """The node's folder is the node's: it can't lead the helper to what only root may read."""
    spec = rig.spec(has_inputs=True)
    link = rig.data.inputs_dir / spec.sandbox_id
    link.symlink_to("/etc")
    try:
        with pytest.raises(SandboxFailed, match="binds"):
            rig.run(rig.driver.create(spec))
    finally:
        link.unlink()
    assert traces(rig, spec.sandbox_id) == []


def test_a_start_without_lease_is_refused(rig: Any) -> None:
    async def start() -> None:
        spec = rig.spec()
        fields = {k: getattr(spec, k) for k in ("sandbox_id", "cpus", "memory_bytes", "disk_bytes", "inodes", "pids")}
        await rig.driver._helper.call(
            "start_machine",
            **fields,
            runtime="runc",
            template_name=spec.template.name,
            template_digest=spec.template.digest,
            cpu_ids=[0],
            has_inputs=False,
            has_network=False,
            background=False,
            reuse_disk=False,
        )

    with pytest.raises(SandboxFailed, match="lease_uids"):
        rig.run(start())


def test_two_starts_of_one_sandbox(rig: Any) -> None:
    """The second finds the disk of the first and fails; what it gives back is the machine as a whole."""
    machine = rig.create()
    machine.agent.link.close()
    with pytest.raises(BellglassError):
        rig.run(rig.driver.create(rig.spec(sandbox_id=machine.handle.sandbox_id)))
    rig.run(machine.handle.reclaim())
    assert traces(rig, machine.handle.sandbox_id) == []


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
