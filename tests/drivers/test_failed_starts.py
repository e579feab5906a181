"""Machines whose start is refused or fails: the error says why, and nothing is left."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bellglass.errors import BellglassError, NotFound, SandboxFailed
from bellglass.node.drivers.base import Template
from tests.drivers.machine_traces import traces

MIB = 2**20
pytestmark = pytest.mark.usefixtures("clean")
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
