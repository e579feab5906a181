"""What the numbers were measured on: kernel, processor, memory, versions. Nothing that names the machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from bellglass import __version__


def facts(scratch: Path, *, docker: str | None = None) -> dict[str, Any]:
    """Of this host; `scratch` is where disks lie, `docker` the version of the peer's daemon."""
    found = {
        "kernel": _numbers(platform.release()),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "virtual": "hypervisor" in _cpuinfo("flags").split(),
        "cgroups": _cgroups(),
        "file_system": _file_system(scratch),
        "distribution": platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
        "python": platform.python_version(),
        "bellglass": __version__,
        "runc": _version_of("runc"),
    }
    if docker:
        found["docker"] = docker
    return found


def busy_percent(period_s: float = 1.0) -> int:
    """How much of all processors others use, asked while the benchmark itself rests."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # idle and iowait

    total, idle = ticks()
    time.sleep(period_s)
    total_after, idle_after = ticks()
    return round(100 * (1 - (idle_after - idle) / (total_after - total)))


def _numbers(release: str) -> str:
    # What distributors and hosts append to a kernel's version may name them.
    match = re.match(r"\d+(\.\d+)*", release)
    return match[0] if match else "unknown"


def _cpuinfo(field: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def _cpu_model() -> str:
    name = _cpuinfo("model name") or "unknown"
    model = _cpuinfo("model")
    return f"{name}, model {model}" if model else name


def _cgroups() -> str:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "v2"
    return "v1 with a unified mount" if Path("/sys/fs/cgroup/unified/cgroup.procs").exists() else "v1"


def _file_system(folder: Path) -> str:
    done = subprocess.run(
        ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(folder)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def _version_of(program: str) -> str:
    if not shutil.which(program):
        return "missing"
    done = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True)
    return _numbers(done.stdout.split()[2])
