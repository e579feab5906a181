"""What lies in the sandboxes' folder: for a node whose journal was lost, or is an older copy."""

from __future__ import annotations

import json
from typing import Any

from bellglass import ids
from bellglass.node.helper import cgroup
from bellglass.node.helper.context import DISK, MACHINE, Context

PAGE = 1000


def list_machines(context: Context, after: str) -> list[str]:
    """The next ids in order, at most PAGE."""
    names = sorted(path.name for path in context.data.sandboxes_dir.iterdir() if ids.SANDBOX_ID.fullmatch(path.name))
    return [name for name in names if name > after][:PAGE]


def describe_machine(context: Context, sandbox_id: str) -> dict[str, Any]:
    """`has_disk`; `running`: whether it has processes; `spec`: the fields of StartMachine, or None."""
    folder = context.data.sandbox_dir(sandbox_id)
    try:
        spec = json.loads((folder / MACHINE).read_text())
    except (FileNotFoundError, ValueError):  # a start that was cut off
        spec = None
    running = cgroup.is_populated(cgroup.layout().group(context.group_name(sandbox_id)))
    return {"has_disk": (folder / DISK).is_file(), "running": running, "spec": spec}
