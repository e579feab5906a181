"""`bellglass quarantine ls|adopt|rm`: sandboxes that the database does not know, with the admin key (see keys)."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated
from urllib.parse import quote

import typer

from bellglass.cli import _common as c
from bellglass.cli.keys import DataDir, admin_transport
from bellglass.model import Quarantined, Sandbox

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The sandboxes' ids.")]


@app.command("ls", help="List them: whose they were, and when they are removed.")
def ls(data_dir: DataDir = None, as_json: c.JsonFlag = False) -> None:
    with closing(admin_transport(data_dir)) as transport:
        items = transport.request("GET", "/v1/quarantine", idempotent=True).json()["items"]
    found = [Quarantined.from_json(item) for item in items]
    if as_json:
        for one in found:
            c.print_json(one)
        return
    rows = [
        (one.id, one.project_name or one.project_id, one.state, one.template, one.name, c.age(one.quarantined_at),
         c.age(one.removed_at))
        for one in found
    ]  # fmt: skip
    c.print_table(["id", "project", "state", "template", "name", "since", "removed in"], rows)


@app.command("adopt", help="Make them sandboxes of a project again; they go on where they stood.")
def adopt(
    ids: Ids,
    project: Annotated[str | None, typer.Option(help="By default the one that each belonged to.")] = None,
    data_dir: DataDir = None,
    as_json: c.JsonFlag = False,
) -> None:
    with closing(admin_transport(data_dir)) as transport:
        for id in ids:
            target = f"/v1/quarantine/{quote(id, safe='')}/adopt"
            answer = transport.request("POST", target, json={"project": project}, idempotent=True)
            sandbox = Sandbox.from_json(answer.json())
            c.print_json(sandbox) if as_json else print(sandbox.id)


@app.command("rm", help="Remove them now, with their disks.")
def rm(ids: Ids, data_dir: DataDir = None, as_json: c.JsonFlag = False) -> None:
    with closing(admin_transport(data_dir)) as transport:
        for id in ids:
            transport.request("DELETE", f"/v1/quarantine/{quote(id, safe='')}", idempotent=True)
            c.print_json({"id": id, "removed": True}) if as_json else print(id)
