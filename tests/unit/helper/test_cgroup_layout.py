"""Which cgroup hierarchies a host has, read from its mount table."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellglass.errors import NotSupported
from bellglass.node.helper.cgroup import group_name, parse_mounts

HYBRID = """\
proc /proc proc rw,relatime 0 0
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n"
V1 = "\n".join(line for line in HYBRID.splitlines() if "cgroup2" not in line)


def test_hybrid() -> None:
    layout = parse_mounts(HYBRID)
    root = Path("/sys/fs/cgroup")
    assert layout.hierarchies == (root / "cpu,cpuacct", root / "memory", root / "systemd", root / "unified")
    assert (layout.unified, layout.memory, layout.is_v2) == (root / "unified", root / "memory", False)


def test_v2() -> None:
    layout = parse_mounts(V2)
    assert layout.hierarchies == (Path("/sys/fs/cgroup"),)
    assert (layout.unified, layout.memory, layout.is_v2) == (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup"), True)


@pytest.mark.parametrize("mounts", [V1, "", HYBRID.replace("memory", "freezer")])
def test_what_cannot_kill_or_limit_is_refused(mounts: str) -> None:
    with pytest.raises(NotSupported, match="unified"):
        parse_mounts(mounts)


def test_names_carry_the_installation() -> None:
    assert group_name("testtest", "sb" + "a" * 20) == "bellglass-testtest/sb" + "a" * 20
