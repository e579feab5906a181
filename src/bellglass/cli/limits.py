"""`bellglass limits show|set`: how many sandboxes a project may have at once.

`show` asks with the project's key; with `--project`, and for `set`, the admin key is used (see `bellglass keys`).
"""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.cli.keys import DataDir, admin_transport
from bellglass.errors import InvalidRequest
from bellglass.model import ProjectLimits
from bellglass.sdk._config import resolve
from bellglass.sdk._http import target
from bellglass.sdk._sync.transport import Transport

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.command("show", help="Show the limits of the key's project, or with the admin key of any.")
def show(
    project: Annotated[str | None, typer.Option(help="A project's name or id; needs the admin key.")] = None,
    data_dir: DataDir = None,
    as_json: c.JsonFlag = False,
) -> None:
    with closing(Transport(resolve()) if project is None else admin_transport(data_dir)) as transport:
        answer = transport.request("GET", target("/v1/limits", {"project": project}), idempotent=True).json()
    _print(ProjectLimits.from_json(answer), as_json)


@app.command("set", help="Set a project's limits, with the admin key.")
def set_limits(
    project: Annotated[str, typer.Option(help="The project's name or id.")],
    sandboxes: Annotated[str, typer.Option(metavar="N", help="Most sandboxes at once, or `default`.")],
    data_dir: DataDir = None,
    as_json: c.JsonFlag = False,
) -> None:
    if sandboxes != "default" and not (sandboxes.isascii() and sandboxes.isdigit()):
        raise InvalidRequest(f"--sandboxes: {sandboxes!r} is not a whole number from 0", hint="or `default`")
    most = None if sandboxes == "default" else int(sandboxes)
    with closing(admin_transport(data_dir)) as transport:
        body = {"project": project, "sandboxes": most}
        answer = transport.request("PUT", "/v1/limits", json=body, idempotent=True).json()
    _print(ProjectLimits.from_json(answer), as_json)


def _print(limits: ProjectLimits, as_json: bool) -> None:
    if as_json:
        c.print_json(limits)
        return
    rows = [(limits.project_name, "sandboxes", limits.sandboxes.used, limits.sandboxes.most)]
    c.print_table(["project", "limit", "used", "most"], rows)
