"""What the helper would do, told without doing it; and that its requests can't hold paths."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.datadir import DataDir
from bellglass.errors import InvalidRequest
from bellglass.node.helper import cgroup
from bellglass.node.helper.context import Context
from bellglass.node.helper.operations import OPERATIONS, parse
from bellglass.node.helper.start import MachineStart, StartMachine, sandbox_files

ID = "sb" + "a" * 20
SPEC = StartMachine(
    sandbox_id=ID,
    runtime="runc",
    template_name="base",
    template_digest="0" * 64,
    cpus=1.0,
    cpu_ids=(0,),
    memory_bytes=2**29,
    disk_bytes=2**30,
    inodes=65536,
    pids=100,
    has_inputs=False,
    has_network=True,
    reuse_disk=False,
)
LAYOUT = cgroup.parse_mounts("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0")


def test_the_plan_can_be_read() -> None:
    context = Context(
        data=DataDir(Path("/data")),
        templates_dir=Path("/cache/templates"),
        blanks_dir=Path("/cache/disks"),
        installation="testtest",
        node_uid=1,
        node_gid=2,
        proxy_uid=3,
        proxy_gid=4,
        resolver_uid=5,
        resolver_gid=6,
        machine="x86_64",
    )
    steps = MachineStart(context, SPEC, LAYOUT, 3).plan()
    assert [step.name for step in steps] == [
        *("template", "gateway", "namespace", "disk", "loop", "idmap", "network", "overlay", "binds", "cgroup"),
        *("bundle", "runtime"),
    ]
    told = "\n".join(step.describe for step in steps)
    for part in ("/cache/templates/base-0000000000000000", f"/data/sandboxes/{ID}/disk.img", "1879244800"):
        assert part in told
    again = MachineStart(context, replace(SPEC, reuse_disk=True), LAYOUT, 3).plan()
    assert [step.name for step in again] == [step.name for step in steps], "only where the disk comes from differs"
    assert [step.describe for step in again if step.name == "disk"] == [f"find /data/sandboxes/{ID}/disk.img"]


@pytest.mark.parametrize(("count", "online"), [(1, "0\n"), (2, "0-1\n"), (64, "0-63\n")])
def test_files_inside(count: int, online: str) -> None:
    files = sandbox_files("name", count, has_network=True)
    assert "\nnameserver 10.200.0.1\n" in files["resolv.conf"]
    assert "nameserver" not in sandbox_files("name", count, has_network=False)["resolv.conf"]
    assert files["cpu_online"] == online
    assert "127.0.0.1 localhost name\n" in files["hosts"]


def test_a_page_of_operations() -> None:
    assert set(OPERATIONS) == {
        "lease_uids",
        "start_machine",
        "reclaim_machine",
        "keep_disk",
        "renew_lxcfs",
        "probe",
    } | {"list_machines", "describe_machine", "open_listeners", "raise_wall", "hasten_end"}
    assert parse({"id": 1, "op": "reclaim_machine", "sandbox_id": ID})[1] == {"sandbox_id": ID}


@given(st.text() | st.integers() | st.none() | st.lists(st.text()))
def test_no_text_but_an_id_gets_through(value: object) -> None:
    request = {"id": 1, "op": "reclaim_machine", "sandbox_id": value}
    try:
        _, fields = parse(json.loads(json.dumps(request)))
    except InvalidRequest:
        return
    sandbox_id = fields["sandbox_id"]
    assert len(sandbox_id) == 22 and sandbox_id.isalnum() and sandbox_id.isascii()
