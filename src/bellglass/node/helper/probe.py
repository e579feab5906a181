"""What this host has and lacks for the container tier, short of starting a machine (the driver does that)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bellglass.errors import BellglassError
from bellglass.node.helper import cgroup, run
from bellglass.node.helper.context import Context

PID_MAX = Path("/proc/sys/kernel/pid_max")
_PROGRAMS = {"mkfs.ext4": "e2fsprogs", "nft": "nftables"}


def probe(context: Context, runtime: str) -> Mapping[str, Any]:
    """`version`, `helper_pid`, `lxcfs`, `pid_max`, and `missing`: a list of {reason, hint}, empty when all is there."""
    missing: list[dict[str, str]] = []

    def need(there: bool, reason: str, hint: str) -> None:
        if not there:
            missing.append({"reason": reason, "hint": hint})

    programs = {runtime: runtime} | _PROGRAMS
    for program, package in programs.items():
        found = shutil.which(program, path=run.ENVIRONMENT["PATH"])
        need(found is not None, f"{program} is not installed", f"apt-get install {package}")
    need(Path("/dev/loop-control").exists(), "there are no loop devices", "modprobe loop")
    filesystems = Path("/proc/filesystems").read_text().split()
    for name in ("overlay", "ext4"):
        need(name in filesystems, f"the kernel has no {name}", f"modprobe {name}")
    limit = int(Path("/proc/sys/user/max_user_namespaces").read_text())
    need(limit > 0, "user namespaces are off", "sysctl user.max_user_namespaces=100000")
    need(context.agent_binary.exists(), f"the guest agent is not built: {context.agent_binary}", "make agent")
    try:
        cgroup.layout()
    except BellglassError as error:
        need(False, error.message, error.hint or "")
    lxcfs = False
    try:
        lxcfs = context.has_lxcfs
    except BellglassError as error:
        need(False, error.message, error.hint or "")
    version = None
    if not any(runtime in entry["reason"] for entry in missing):
        version = _version(runtime)
    return {
        "version": version,
        "helper_pid": os.getppid(),
        "lxcfs": lxcfs,
        "pid_max": int(PID_MAX.read_text()),
        "missing": missing,
    }


def _version(runtime: str) -> str:
    """`1.1.5` of "runc version 1.1.5+ds1" or "crun version 1.8.1"."""
    words = run.run(runtime, "--version", timeout_s=10).split()
    return words[words.index("version") + 1] if "version" in words[:-1] else "unknown"
