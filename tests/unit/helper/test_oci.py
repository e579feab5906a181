"""The OCI configuration as data: what a machine is made of, for every size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bellglass.node.helper import oci

MACHINE = oci.Machine(
    hostname="sb" + "a" * 20,
    staging=Path("/run/bellglass/stage"),
    first_uid=0x70000000,
    user_namespace="/proc/7/fd/9",
    network_namespace="/proc/7/fd/10",
    cgroups_path="/bellglass-testtest/sb" + "a" * 20,
    cpus=1.5,
    cpu_list="0,3",
    memory_bytes=512 * 2**20,
    pids=100,
    has_inputs=False,
    has_lxcfs=True,
    has_swap_accounting=True,
    limits_in_parent=False,
)
DANGEROUS = {
    *("CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_DAC_READ_SEARCH", "CAP_MKNOD"),
    *("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_RESOURCE", "CAP_SYS_BOOT", "CAP_SYSLOG"),
}


def config(**changes: Any) -> dict[str, Any]:
    return oci.oci_config(replace(MACHINE, **changes), {"defaultAction": "SCMP_ACT_ERRNO"})


def mounts(**changes: Any) -> dict[str, dict[str, Any]]:
    return {mount["destination"]: mount for mount in config(**changes)["mounts"]}


def test_it_is_json() -> None:
    assert json.loads(json.dumps(config())) == config()


def test_namespaces_and_ids() -> None:
    linux = config()["linux"]
    assert {n["type"] for n in linux["namespaces"]} == {"user", "pid", "ipc", "uts", "mount", "network", "cgroup"}
    joined = [namespace for namespace in linux["namespaces"] if "path" in namespace]
    assert joined == [
        {"type": "user", "path": "/proc/7/fd/9"},
        {"type": "network", "path": "/proc/7/fd/10"},
    ], "all others are new"
    whole = [{"containerID": 0, "hostID": 0x70000000, "size": 65536}]
    assert linux["uidMappings"] == linux["gidMappings"] == whole


def test_capabilities() -> None:
    process = config()["process"]
    sets = process["capabilities"]
    assert sets["bounding"] == sets["effective"] == sets["permitted"]
    assert not DANGEROUS & set(sets["bounding"])
    assert "ambient" not in sets and "inheritable" not in sets
    assert process["noNewPrivileges"] is False
    assert process["user"] == {"uid": 0, "gid": 0}


def test_limits() -> None:
    resources = config()["linux"]["resources"]
    assert resources["memory"] == {"limit": 512 * 2**20, "swap": 512 * 2**20}
    assert resources["cpu"] == {"quota": 150_000, "period": 100_000, "cpus": "0,3"}
    assert resources["pids"] == {"limit": 100}
    assert resources["devices"] == [{"allow": False, "access": "rwm"}]
    assert config(has_swap_accounting=False)["linux"]["resources"]["memory"] == {"limit": 512 * 2**20}


def test_on_v2_the_limits_are_on_the_group_above() -> None:
    resources = config(limits_in_parent=True)["linux"]["resources"]
    assert set(resources) == {"devices"}


@pytest.mark.parametrize(("cpus", "quota"), [(0.001, 1000), (0.5, 50_000), (2, 200_000), (64.0, 6_400_000)])
def test_cpu_quota(cpus: float, quota: int) -> None:
    assert oci.cpu_quota_us(cpus) == quota


def test_every_bind_is_read_only_and_without_setuid_and_devices() -> None:
    for target, mount in mounts(has_inputs=True).items():
        if mount["type"] == "bind":
            assert {"ro", "nosuid", "nodev"} <= set(mount["options"]), target
            assert mount["source"].startswith("/run/bellglass/stage/"), target


def test_only_dev_may_hold_devices() -> None:
    for target, mount in mounts().items():
        if target not in ("/dev", "/dev/pts"):
            assert "nodev" in mount["options"], target


def test_optional_mounts() -> None:
    assert "/inputs" in mounts(has_inputs=True) and "/inputs" not in mounts()
    assert "/proc/meminfo" in mounts() and "/proc/meminfo" not in mounts(has_lxcfs=False)
    assert "/tmp" not in mounts(), "on the disk"
    assert "size=262144k" in mounts()["/dev/shm"]["options"]
    assert "ro" in mounts()["/sys"]["options"]


def test_paths() -> None:
    linux = config()["linux"]
    for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sysrq-trigger", "/sys/firmware"):
        assert path in linux["maskedPaths"]
    assert "/proc/sys" in linux["readonlyPaths"]
