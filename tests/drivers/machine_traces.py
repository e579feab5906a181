"""What a machine leaves on the host, by its sandbox's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bellglass.node.helper import cgroup, uids
from bellglass.testing import kernel


def traces(rig: Any, sandbox_id: str) -> list[str]:
    """Everything on the host that bears the sandbox's name."""
    name = cgroup.group_name(rig.installation, sandbox_id)
    found = [str(h / name) for h in cgroup.layout().hierarchies if (h / name).exists()]
    found += [f"lease {index}"] if (index := uids.find(rig.installation, sandbox_id)) is not None else []
    found += [str(p) for p in (rig.data.sandbox_dir(sandbox_id), rig.data.runc_root / sandbox_id) if p.exists()]
    # The id of a probe is the same in all installations.
    mounts, ours = Path("/proc/self/mounts").read_text().splitlines(), str(rig.data.root)
    found += [line for line in mounts if sandbox_id in line and ours in line]
    found += [device for device, backing in kernel.loop_devices().items() if sandbox_id in backing and ours in backing]
    return found
