"""What is promised to sandboxes: every resource has an end, and is counted until it is given back, restarts or not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness import Bench, bench

from bellglass import errors, settings
from bellglass.model import SandboxSpec
from bellglass.node.admission import RESOURCES, Admission
from bellglass.node.executions import budget

GIB = 2**30
HOST_CPUS = len(os.sched_getaffinity(0))
SMALL = {
    "node.cpu_overcommit": 2.0,
    "node.cpu_reserve": 0.5,
    "node.memory_overcommit": 1.0,
    "node.memory_reserve": GIB,
    "node.disk_overcommit": 1.0,
    "node.disk_reserve": GIB,
    "node.pids_overcommit": 1.0,
    "node.pids_reserve": 31744,
}
FIELDS = {"cpu": "cpus", "memory": "memory_bytes", "disk": "disk_bytes", "pids": "pids"}


@pytest.fixture(autouse=True)
def steady_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """pid_max, and a disk whose free space nobody else changes meanwhile."""
    monkeypatch.setattr("bellglass.node.admission._pid_max", lambda: 32768)
    monkeypatch.setattr(Admission, "_disk_free", lambda self: 101 * GIB)


def spec(**more: Any) -> SandboxSpec:
    small = {"cpus": 0.1, "memory_bytes": 2**20, "disk_bytes": 2**20, "pids": 8}
    given = {
        "template": "base", "template_digest": "0" * 64, "env": {}, "user": "me", "workdir": "/tmp", "inodes": 1000,
        "lifetime_s": 60.0, "idle_timeout_s": None, "tier": "process", "network": "deny",
    }  # fmt: skip
    return SandboxSpec(**(given | small | more))


@pytest.fixture
def admission(tmp_path: Path) -> Admission:
    made = Admission(settings.load(None, {}, SMALL), tmp_path)
    made.memory_total_bytes = 9 * GIB
    return made


LOGS = budget.most_bytes(64 * 2**20, 256)
ROOM = {"cpu": (HOST_CPUS - 0.5) * 2, "memory": 8 * GIB, "disk": 100 * GIB, "pids": 1024}
"""What SMALL leaves of this host."""


@pytest.mark.parametrize("resource", RESOURCES)
def test_each_resource_ends_and_says_so(admission: Admission, resource: str) -> None:
    field, room = FIELDS[resource], ROOM[resource]
    piece: Any = min(float(HOST_CPUS), 1.0) if resource == "cpu" else room // 4
    asked = piece + LOGS if resource == "disk" else piece
    fits = int(room // asked)
    for number in range(fits):
        admission.grant(f"sb{number}", spec(**{field: piece}))
    with pytest.raises(errors.NoCapacity) as caught:
        admission.grant("sbtoomuch", spec(**{field: piece}))
    assert caught.value.details == {"resource": resource, "asked": asked, "free": pytest.approx(room - fits * asked)}
    assert f"node.{resource}_overcommit" in str(caught.value) and "delete" in str(caught.value)
    admission.give_back("sb0")
    admission.grant("sbafter", spec(**{field: piece}))


@pytest.mark.parametrize("resource", RESOURCES)
def test_overcommit_and_reserve_move_the_end(tmp_path: Path, resource: str) -> None:
    def free(**changed: Any) -> float:
        made = Admission(settings.load(None, {}, SMALL | changed), tmp_path)
        return made.report()["resources"][resource]["free"]

    name = f"node.{resource}"
    reserve: Any = {"cpu": 1.0, "pids": 32000}.get(resource, 2 * GIB)
    assert free(**{f"{name}_overcommit": 4 * SMALL[f"{name}_overcommit"]}) == pytest.approx(4 * free(), rel=1e-3)
    assert free(**{f"{name}_reserve": reserve}) < free()


def test_what_is_given_back_twice_counts_once(admission: Admission) -> None:
    before = admission.report()["resources"]
    admission.grant("one", spec(pids=100))
    admission.grant("two", spec(pids=50))
    assert admission.grant("one", spec(pids=7)).pids == 100, "a repeated create is the same one"
    for _ in range(3):
        admission.give_back("one")
    assert admission.report()["resources"]["pids"]["committed"] == 50
    admission.give_back("two")
    assert admission.report()["resources"] == before


def test_a_sandbox_over_the_hosts_memory_is_refused_whatever_the_overcommit(tmp_path: Path) -> None:
    made = Admission(settings.load(None, {}, SMALL | {"node.memory_overcommit": 100.0}), tmp_path)
    made.grant("most", spec(memory_bytes=made.memory_total_bytes - GIB))
    with pytest.raises(errors.NoCapacity, match="memory"):
        made.grant("more", spec(memory_bytes=made.memory_total_bytes - GIB + 1))


def test_logs_count_as_disk(tmp_path: Path) -> None:
    small_logs = {"node.log_limit": 2**20, "node.max_executions": 10}
    made = Admission(settings.load(None, {}, SMALL | small_logs), tmp_path)
    made.grant("one", spec(disk_bytes=GIB))
    most = budget.most_bytes(2**20, 10)
    assert made.report()["resources"]["disk"]["committed"] == GIB + most
    assert 34 * 2**20 <= most < LOGS


def test_rings_of_running_executions_stay_in_the_budget() -> None:
    limit, rings = 64 * 2**20, []
    for _ in range(256):
        rings.append(budget.ring_bytes(limit, rings))
    assert rings[0] == limit and min(rings) == budget.LEAST_RING_BYTES
    assert sum(rings) + budget.KEPT_LOGS * limit <= budget.most_bytes(limit, 256)


def test_refused_creates_leave_nothing(run) -> None:
    async def scenario() -> None:
        async with bench(**{"node.memory_overcommit": 1.0}) as node:
            total = node.node.sandboxes.admission.memory_total_bytes
            await node.create(memory_bytes=total // 2)
            for resource, asked in (("memory", total // 2), ("disk", 2**50), ("pids", 4_000_000)):
                with pytest.raises(errors.NoCapacity) as caught:
                    await node.create(**{FIELDS[resource]: asked})
                assert caught.value.details["resource"] == resource, "and it crosses the link as it is"
                assert caught.value.details["asked"] >= asked > caught.value.details["free"] >= 0
            with pytest.raises(errors.InvalidRequest, match="the most is"):
                await node.create(cpus=HOST_CPUS + 1.0)
            with pytest.raises(errors.NotFound, match="template"):
                await node.create(template_digest="f" * 64)
            with pytest.raises(errors.NotSupported):
                await node.create(tier="microvm")
            assert len(node.node.sandboxes.rows()) == 1
            assert len(node.node.sandboxes._locks) == 0, "a refused id is held nowhere"

    run(scenario())


def committed(node: Bench) -> dict[str, float]:
    found = node.node.sandboxes.admission.report()["resources"]
    return {name: found[name]["committed"] for name in RESOURCES}


def test_sums_are_the_same_after_a_restart(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            boxes = [await node.create(cpus=0.5, pids=100 + number) for number in range(3)]
            before = committed(node)
            assert before["pids"] == 303 and before["cpu"] == 1.5
            await node.restart()
            assert committed(node) == before
            await node.delete(boxes[0])
            await node.node.sandboxes.wait_reclaimed()
            assert committed(node)["pids"] == 203
            await node.restart()
            assert committed(node)["pids"] == 203, "what was given back stays so"
            await node.delete_all()
            assert set(committed(node).values()) == {0}

    run(scenario())


def test_what_a_restart_finds_half_ended_counts_until_it_is_reclaimed(run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create(pids=77)
            handle = node.driver.handles[0]

            async def stuck() -> None:
                raise OSError("a fault on order")

            monkeypatch.setattr(handle, "reclaim", stuck)
            await node.delete(box)
            assert committed(node)["pids"] == 77
            reclaimed = node.driver.reclaim_leftovers
            monkeypatch.setattr(node.driver, "reclaim_leftovers", lambda sandbox_id: stuck())
            await node.restart()
            assert committed(node)["pids"] == 77, "its disk is still there"
            monkeypatch.setattr(node.driver, "reclaim_leftovers", reclaimed)
            await node.restart()
            await node.node.sandboxes.wait_reclaimed()
            assert committed(node)["pids"] == 0

    run(scenario())


def test_the_settings_of_admission_are_numbers() -> None:
    assert settings.load(None, {}, {"node.cpu_reserve": "0"})["node.cpu_reserve"] == 0.0
    for value in ("-1", "nan", True, "much"):
        with pytest.raises(errors.InvalidRequest, match="cpu_reserve"):
            settings.load(None, {}, {"node.cpu_reserve": value})
