"""Daemons of a data folder that are told by their command lines: a supervisor that was killed while it started one had
not written it down yet."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from bellglass.supervise.install import Installation
from bellglass.supervise.processes import ProcessId

MODULES = (
    "bellglass.server",
    "bellglass.node",
    "bellglass.node.helper",
    "bellglass.egress.proxy",
    "bellglass.egress.resolver",
)
"""In the order in which they are to be stopped."""


def find(installation: Installation) -> list[ProcessId]:
    """The daemons' processes of this folder, whoever started them. A command line is what its process makes of it, so
    only the uids of our own daemons count: processes of sandboxes have others."""
    uids = {0, installation.server.uid, installation.node.uid, installation.proxy.uid, installation.resolver.uid}
    found: list[tuple[int, ProcessId]] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            module = _module(entry, installation.data.root)
            if module is not None and entry.stat().st_uid in uids:
                found.append((MODULES.index(module), ProcessId.of(int(entry.name))))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's
    return [process for _, process in sorted(found, key=lambda item: (item[0], item[1].pid))]


def _module(entry: Path, data_dir: Path) -> str | None:
    """Which daemon of the folder it is, if any."""
    arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    for flag, module in pairwise(arguments):
        if flag == "-m":
            named = any(pair == ("--data-dir", str(data_dir)) for pair in pairwise(arguments))
            return module if module in MODULES and named else None
    return None
