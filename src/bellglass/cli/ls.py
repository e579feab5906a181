"""`bellglass ls`: the project's sandboxes."""

from __future__ import annotations

from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.sdk._face import Sandbox
from bellglass.units import format_size


def command(
    all: Annotated[bool, typer.Option("--all", "-a", help="Those that ended as well.")] = False,
    state: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    owner: c.Owner = None,
    name: Annotated[str | None, typer.Option(help="Only the one of this name.")] = None,
    label: c.Label = None,
    as_json: c.JsonFlag = False,
) -> None:
    boxes = Sandbox.list(
        state="all" if all else state, owner=owner, name=name, labels=c.pairs(label, "--label") or None
    )
    if as_json:
        for box in boxes:
            c.print_json(box._known)
        return
    rows = []
    for box in boxes:
        info = box._known
        state_shown = f"{info.state} ({info.termination_reason})" if info.termination_reason else info.state
        rows.append(
            (
                info.id,
                info.name,
                state_shown,
                info.template,
                info.tier,
                f"{info.cpus:g}",
                format_size(info.memory_bytes),
                c.age(info.created_at),
                c.age(info.expires_at) if info.state == "running" else None,
                info.owner,
            )
        )
    c.print_table(["id", "name", "state", "template", "tier", "cpus", "memory", "age", "left", "owner"], rows)
