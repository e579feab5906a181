"""What another reconfiguration of the unified cgroup mount has to repeat, so that it changes nothing else."""

import pytest

from bellglass.node.helper.hostwide import unified_options

HYBRID = """31 23 0:28 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
40 31 0:37 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"


def test_options() -> None:
    assert unified_options(HYBRID, "/sys/fs/cgroup/unified") == []
    assert unified_options(V2, "/sys/fs/cgroup") == ["nsdelegate", "memory_recursiveprot"]
    with pytest.raises(FileNotFoundError, match="/elsewhere: no cgroup2"):
        unified_options(V2, "/elsewhere")
