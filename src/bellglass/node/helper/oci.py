"""The OCI runtime configuration of a machine, as a pure function of its numbers and of where the helper has put things.

runc and crun take the same file. Sources of mounts are below a staging folder that exists only in the helper child's
own mount namespace, so nobody can swap them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bellglass.node.helper.uids import RANGE_SIZE

CPU_PERIOD_US = 100_000
CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SETUID", "CAP_SETGID", "CAP_KILL"),
    *("CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SYS_CHROOT", "CAP_AUDIT_WRITE"),
)
NAMESPACES = ("pid", "ipc", "uts", "mount", "cgroup")
MASKED_PATHS = (
    *("/proc/acpi", "/proc/asound", "/proc/config.gz", "/proc/driver", "/proc/dynamic_debug", "/proc/iomem"),
    *("/proc/ioports", "/proc/kallsyms", "/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kmsg"),
    *("/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats", "/proc/modules"),
    *("/proc/mtrr", "/proc/pagetypeinfo", "/proc/partitions", "/proc/sched_debug", "/proc/schedstat", "/proc/scsi"),
    *("/proc/slabinfo", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/timer_stats", "/proc/tty/driver"),
    *("/proc/vmallocinfo", "/sys/class/dmi", "/sys/devices/virtual/dmi", "/sys/devices/virtual/powercap"),
    *("/sys/firmware", "/sys/fs/bpf", "/sys/fs/pstore", "/sys/hypervisor", "/sys/kernel/debug"),
    *("/sys/kernel/notes", "/sys/kernel/security", "/sys/kernel/slab", "/sys/kernel/tracing", "/sys/module"),
    # Loop devices tell the paths of other sandboxes' disks.
    "/sys/devices/virtual/block",
)
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys")
# What lxcfs shows by the reader's own limits. runc allows mounts in /proc at these places only.
LXCFS_FILES = tuple(f"proc/{n}" for n in ("cpuinfo", "diskstats", "loadavg", "meminfo", "stat", "swaps", "uptime"))
CPU_ONLINE = "sys/devices/system/cpu/online"
AGENT_DIR = "/run/bellglass"
AGENT_ARGS = (f"{AGENT_DIR}/bellglass-agent", f"{AGENT_DIR}/agent.sock")
_ENV = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
_RUN_MIB = 16
# Of the number that the whole host has (kernel.pty.max).
_MAX_PTYS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`staging` holds `root`, `agent`, `files`, and where they are asked for `inputs` and `lxcfs`."""

    hostname: str
    staging: Path
    first_uid: int
    user_namespace: str
    """The one that the runtime joins: which maps `first_uid`, and which `first_uid` owns (idmap.py tells why)."""
    network_namespace: str
    """That user namespace's, with its link to the gateway where the machine has a network."""
    cgroups_path: str
    cpus: float
    cpu_list: str
    """As cpuset takes it: "0,1"."""
    memory_bytes: int
    pids: int
    has_inputs: bool
    has_lxcfs: bool
    has_swap_accounting: bool
    limits_in_parent: bool
    """cgroup v2: limits are on the group above the one that the runtime makes."""


def cpu_list(cpu_ids: tuple[int, ...]) -> str:
    return ",".join(map(str, cpu_ids))


def cpu_quota_us(cpus: float) -> int:
    """The kernel takes no less than 1 ms of a period."""
    return max(1000, round(cpus * CPU_PERIOD_US))


def oci_config(machine: Machine, seccomp: Mapping[str, Any]) -> dict[str, Any]:
    mapping = [{"containerID": 0, "hostID": machine.first_uid, "size": RANGE_SIZE}]
    capabilities = list(CAPABILITIES)
    return {
        "ociVersion": "1.0.2",
        "hostname": machine.hostname,
        "root": {"path": str(machine.staging / "root"), "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": list(AGENT_ARGS),
            "env": list(_ENV),
            # sudo needs it off; the capabilities below are all that a setuid program can gain.
            "noNewPrivileges": False,
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "oomScoreAdj": 0,
        },
        "mounts": _mounts(machine),
        "linux": {
            "namespaces": [
                {"type": "user", "path": machine.user_namespace},
                {"type": "network", "path": machine.network_namespace},
                *({"type": kind} for kind in NAMESPACES),
            ],
            "uidMappings": mapping,
            "gidMappings": mapping,
            "cgroupsPath": machine.cgroups_path,
            "resources": _resources(machine),
            "rootfsPropagation": "private",
            "seccomp": dict(seccomp),
            "maskedPaths": list(MASKED_PATHS),
            "readonlyPaths": list(READONLY_PATHS),
        },
    }


def _resources(machine: Machine) -> dict[str, Any]:
    resources: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}
    if not machine.limits_in_parent:
        resources["memory"] = {"limit": machine.memory_bytes}
        if machine.has_swap_accounting:
            resources["memory"]["swap"] = machine.memory_bytes  # memory and swap together: no swap
        resources["cpu"] = {
            "quota": cpu_quota_us(machine.cpus),
            "period": CPU_PERIOD_US,
            "cpus": machine.cpu_list,
        }
        resources["pids"] = {"limit": machine.pids}
    return resources


def _mounts(machine: Machine) -> list[dict[str, Any]]:
    shm_kib = machine.memory_bytes // 2 // 1024
    safe = ["nosuid", "nodev", "noexec"]
    mounts = [
        _mount("proc", "/proc", "proc", safe),
        _mount("tmpfs", "/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=64k"]),
        _mount(
            *("devpts", "/dev/pts", "devpts"),
            ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", f"max={_MAX_PTYS}"],
        ),
        _mount("tmpfs", "/dev/shm", "tmpfs", [*safe, "mode=1777", f"size={shm_kib}k"]),
        _mount("mqueue", "/dev/mqueue", "mqueue", safe),
        _mount("sysfs", "/sys", "sysfs", [*safe, "ro"]),
        _mount("tmpfs", "/run", "tmpfs", ["nosuid", "nodev", "mode=755", f"size={_RUN_MIB}m"]),
        _mount("tmpfs", "/run/lock", "tmpfs", [*safe, "mode=1777", "size=4m"]),
        _bind(machine.staging / "agent", AGENT_DIR, ["nosuid", "nodev"]),
    ]
    for name in ("hostname", "hosts", "resolv.conf"):
        mounts.append(_bind(machine.staging / "files" / name, f"/etc/{name}", safe))
    mounts.append(_bind(machine.staging / "files" / "cpu_online", f"/{CPU_ONLINE}", safe))
    if machine.has_inputs:
        mounts.append(_bind(machine.staging / "inputs", "/inputs", ["nosuid", "nodev"]))
    if machine.has_lxcfs:
        mounts += [_bind(machine.staging / "lxcfs" / name, f"/{name}", safe) for name in LXCFS_FILES]
    return mounts


def _mount(source: str, target: str, kind: str, options: list[str]) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": options}


def _bind(source: Path, target: str, options: list[str]) -> dict[str, Any]:
    return {
        "destination": target,
        "type": "bind",
        "source": str(source),
        "options": ["bind", "ro", "private", *options],
    }
