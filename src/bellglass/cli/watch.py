"""`bellglass watch ID [PATH]`: what changes in a folder of a sandbox, as it happens."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.sdk._face import Sandbox


def command(
    id: Annotated[str, typer.Argument(help="The sandbox.")],
    path: Annotated[str, typer.Argument(help="The folder; relative ones start at the workdir.")] = ".",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="All folders below it, too.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many changes.")] = None,
    user: c.User = None,
    as_json: c.JsonFlag = False,
) -> None:
    box = Sandbox.connect(id)
    try:
        with box.files.watch(path, recursive=recursive, user=user) as watch:
            print(f"bellglass: watching {c.plain(path)}", file=sys.stderr, flush=True)
            for number, event in enumerate(watch, 1):
                if as_json:
                    c.print_json(event)
                else:
                    shown = c.plain(event.path) + ("/" if event.dir and event.path != "." else "")
                    print(f"{event.kind:8}  {shown}".rstrip())
                sys.stdout.flush()
                if number == count:
                    break
    finally:
        box.close()
