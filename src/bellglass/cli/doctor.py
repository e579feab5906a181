"""`bellglass doctor`: tries each need of this box and prints the command for what is missing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bellglass.cli._installation import Folder, meant
from bellglass.datadir import DataDir

_MARKS = {"ok": "[green]ok[/]     ", "warn": "[yellow]warn[/]   ", "missing": "[red]missing[/]"}


def command(
    data_dir: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Try what sandboxes need on this box. Exit code 0 when nothing is missing, 1 otherwise."""
    from rich.console import Console
    from rich.markup import escape

    from bellglass.supervise import doctor

    console = Console(highlight=False)
    checks = []
    for check in doctor.run(DataDir(meant(data_dir))):
        checks.append(check)
        if not as_json:
            console.print(f"{_MARKS[check.outcome]}  {check.name}: {escape(check.found)}", soft_wrap=True)
            if check.outcome != "ok" and check.fix:
                console.print(f"           run: {escape(check.fix)}", soft_wrap=True)
    missing = [check.name for check in checks if check.outcome == "missing"]
    if as_json:
        print(json.dumps({"ok": not missing, "checks": [check.to_json() for check in checks]}))
    elif missing:
        console.print(f"missing: {', '.join(missing)}")
    else:
        console.print("everything that is needed is there")
    raise typer.Exit(1 if missing else 0)
