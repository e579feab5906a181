"""`bellglass templates ls, build`: what sandboxes can start from."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.datadir import DataDir, default_data_dir
from bellglass.model import TemplateInfo
from bellglass.sdk._config import resolve
from bellglass.sdk._sync.transport import Transport
from bellglass.settings import load
from bellglass.units import format_size

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def _group() -> None:
    """Templates."""


@app.command("ls", help="List the templates.")
def ls(as_json: c.JsonFlag = False) -> None:
    with closing(Transport(resolve())) as transport:
        items = transport.request("GET", "/v1/templates", idempotent=True).json()["items"]
    templates = [TemplateInfo.from_json(item) for item in items]
    if as_json:
        for template in templates:
            c.print_json(template)
        return
    rows = [(t.name, t.digest[:12], format_size(t.size_bytes), c.age(t.built_at), t.user, t.workdir) for t in templates]
    c.print_table(["name", "digest", "size", "age", "user", "workdir"], rows)


@app.command("build", help="Build a shipped template on this host, unless it is there (root).")
def build(
    name: Annotated[str, typer.Argument(help="The name of its recipe: base or interpreter.")],
    data_dir: Annotated[
        Path | None, typer.Option(help="The installation's folder.", show_default="/var/lib/bellglass")
    ] = None,
) -> None:
    # Only who builds needs the node's part of the package.
    from bellglass.builder.build import build_shown
    from bellglass.supervise.up import templates_dir

    file = DataDir((data_dir or default_data_dir()).absolute()).settings_file
    settings = load(file if file.exists() else None)
    extra_ca = Path(settings["node.extra_ca"]) if settings["node.extra_ca"] else None
    passed = {key: list(settings[key]) for key in _PASSED if settings[key]}
    built = build_shown(name, templates_dir(settings), extra_ca=extra_ca, settings=passed)
    print(f"{built.name} {built.digest[:12]}, {format_size(built.size_bytes)}")


_PASSED = ("egress.exceptions", "egress.presets_pip", "egress.presets_npm", "egress.presets_apt")
"""What of an installation's settings the build of a template goes by."""
