"""A disk that outlives its machine: all else is given back, another machine starts on it, and a failure leaves it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bellglass.errors import NotFound
from bellglass.node.drivers.base import Template
from bellglass.node.helper import cgroup, uids
from bellglass.testing import kernel

MIB = 2**20
KEPT = ["disk.img", "machine.json"]
pytestmark = pytest.mark.usefixtures("clean")


def left(rig: Any, sandbox_id: str) -> list[str]:
    """What is there of a machine: kernel's names, lease, runtime's state, and the files of its folder."""
    name = cgroup.group_name(rig.installation, sandbox_id)
    found = [str(h / name) for h in cgroup.layout().hierarchies if (h / name).exists()]
    found += [f"lease {index}"] if (index := uids.find(rig.installation, sandbox_id)) is not None else []
    found += [str(rig.data.runc_root / sandbox_id)] if (rig.data.runc_root / sandbox_id).exists() else []
    found += [device for device, backing in kernel.loop_devices().items() if sandbox_id in backing]
    folder = rig.data.sandbox_dir(sandbox_id)
    return found + (sorted(path.name for path in folder.iterdir()) if folder.exists() else [])


def test_a_kept_disk_is_all_that_is_left_and_another_machine_reads_it(rig: Any) -> None:
    machine = rig.create(disk_bytes=64 * MIB)
    sandbox_id = machine.handle.sandbox_id
    spec = rig.spec(sandbox_id=sandbox_id, reuse_disk=True, memory_bytes=128 * MIB)
    machine.agent.shell(
        "mkdir -p /home/user/job && echo written > /home/user/job/a && chown -R user /home/user/job && sync"
    )
    assert len(left(rig, sandbox_id)) > 10, "the test sees what a machine has"
    assert rig.run(rig.driver.keep_disk(sandbox_id)), "the machine is killed as well"
    assert left(rig, sandbox_id) == KEPT
    folder = rig.data.sandbox_dir(sandbox_id)
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "disk.img").stat().st_mode & 0o777 == 0o600
    assert rig.run(rig.driver.keep_disk(sandbox_id)) and left(rig, sandbox_id) == KEPT, "safe to repeat"
    for _ in range(2):
        again = rig.run(rig.driver.create(spec))
        agent = type(machine.agent)(rig.link(again), again.groups)
        assert agent.shell("cat /home/user/job/a; stat -c %U /home/user/job/a", user="user") == "written\nuser\n"
        agent.link.close()
        assert rig.run(rig.driver.keep_disk(sandbox_id))
        assert left(rig, sandbox_id) == KEPT
    machine.agent.link.close()
    rig.run(rig.driver.reclaim_leftovers(sandbox_id))
    assert left(rig, sandbox_id) == [] and not folder.exists()


def test_a_start_that_fails_leaves_the_disk(rig: Any) -> None:
    machine = rig.create(disk_bytes=64 * MIB)
    sandbox_id = machine.handle.sandbox_id
    machine.agent.shell("echo still > /root/here && sync")
    machine.agent.link.close()
    rig.run(rig.driver.keep_disk(sandbox_id))
    spec = rig.spec(sandbox_id=sandbox_id, reuse_disk=True)
    with pytest.raises(NotFound, match="not built"):
        rig.run(rig.driver.create(dataclasses.replace(spec, template=Template("nosuch", "0" * 64, Path("/")))))
    assert left(rig, sandbox_id) == KEPT
    with pytest.raises(Exception, match="binds"):  # late: loop device, mounts and overlay are there
        rig.run(rig.driver.create(dataclasses.replace(spec, has_inputs=True)))
    assert left(rig, sandbox_id) == KEPT
    again = rig.run(rig.driver.create(spec))
    agent = type(machine.agent)(rig.link(again), again.groups)
    assert agent.shell("cat /root/here") == "still\n"
    agent.link.close()
    rig.run(again.destroy())
    rig.run(again.reclaim())
    assert left(rig, sandbox_id) == []


def test_without_a_disk_nothing_is_kept(rig: Any) -> None:
    spec = rig.spec(reuse_disk=True)
    assert rig.run(rig.driver.keep_disk(spec.sandbox_id)) is False
    with pytest.raises(NotFound, match="has left no disk"):
        rig.run(rig.driver.create(spec))
    assert left(rig, spec.sandbox_id) == []
