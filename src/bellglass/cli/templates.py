"""`bellglass templates ls`: what sandboxes can start from."""

from __future__ import annotations

import typer

from bellglass.cli import _common as c
from bellglass.model import TemplateInfo
from bellglass.sdk._config import resolve
from bellglass.sdk._sync.transport import Transport
from bellglass.units import format_size

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def _group() -> None:
    """Templates."""


@app.command("ls", help="List the templates.")
def ls(as_json: c.JsonFlag = False) -> None:
    transport = Transport(resolve())
    try:
        items = transport.request("GET", "/v1/templates", idempotent=True).json()["items"]
    finally:
        transport.close()
    templates = [TemplateInfo.from_json(item) for item in items]
    if as_json:
        for template in templates:
            c.print_json(template)
        return
    rows = [(t.name, t.digest[:12], format_size(t.size_bytes), c.age(t.built_at), t.user, t.workdir) for t in templates]
    c.print_table(["name", "digest", "size", "age", "user", "workdir"], rows)
