"""`bellglass status`: what runs here, with which versions, and how much room is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bellglass.cli._installation import Folder, own
from bellglass.datadir import DataDir


def command(
    data_dir: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show daemons, tiers, capacity and counts. Exit code 0 when all daemons run, 3 otherwise."""
    from bellglass.supervise import status

    found = status.read(own(data_dir))
    if as_json:
        print(json.dumps(found))
    else:
        _show(found)
    raise typer.Exit(0 if found["up"] else 3)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from bellglass.units import format_size

    console = Console(highlight=False, markup=False, soft_wrap=True)
    place = f"up at {found['api_url']}" if found["up"] else "down"
    console.print(f"bellglass {found['versions']['bellglass']} in {found['data_dir']}: {place}")
    daemons = Table("daemon", "pid", "memory (PSS)", box=None)
    for name, pid in found["pids"].items():
        pss = found["pss_bytes"].get(name)
        daemons.add_row(name, str(pid), format_size(pss) if pss is not None else "")
    console.print(daemons)
    if not found["up"]:
        console.print(f"start it: bellglass up{DataDir(Path(found['data_dir'])).option}")
    if not found["node"]:
        return
    tiers = Table("tier", "runtime", "usable", box=None)
    for tier in found["tiers"]:
        usable = "yes" if tier["usable"] else f"no: {tier['reason']} ({tier['hint']})"
        tiers.add_row(tier["tier"], f"{tier['runtime']} {tier['version'] or ''}", usable)
    console.print(tiers)
    capacity = found["capacity"]
    room = Table("resource", "on this host", "reserve", "overcommit", "committed", "free to promise", box=None)
    for name, resource in capacity["resources"].items():
        shown = (_amount(name, resource[key], format_size) for key in ("total", "reserve", "committed", "free"))
        total, reserve, committed, free = shown
        room.add_row(name, total, reserve, f"{resource['overcommit']:g}", committed, free)
    console.print(room)
    console.print(f"sandboxes: {found['counts']['sandboxes']}; {format_size(capacity['disk_free_bytes'])} of disk free")
    if found["pool_members"]:
        console.print(f"{found['pool_members']} machines wait in warm pools: bellglass pools ls")
    if found["quarantined"]:
        console.print(
            f"in quarantine, since the database does not know them: {found['quarantined']} (bellglass quarantine ls)"
        )
    if (disk := found["disk"])["low"]:
        console.print(
            f"the disk is nearly full since {disk['since']}: executions are frozen, and nothing new is started or "
            f"written, until {format_size(disk['enough_bytes'])} of it are free; delete sandboxes or files in them, or "
            "free some of the disk"
        )


def _amount(name: str, value: float, format_size: Callable[[int], str]) -> str:
    if name in ("memory", "disk"):
        return format_size(int(value))
    return f"{value:g}" if name == "cpu" else f"{value:.0f}"
