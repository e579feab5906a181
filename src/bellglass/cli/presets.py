"""`bellglass presets renew`: running sandboxes follow what the node's package tools are set up with now."""

from __future__ import annotations

import typer

from bellglass.cli import _common as c
from bellglass.cli._installation import Folder, own

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def presets() -> None:
    pass


@app.command("renew", help="Ask the node's package tools again; running sandboxes with presets follow.")
def renew(
    data_dir: Folder = None,
    as_json: c.JsonFlag = False,
) -> None:
    from bellglass.supervise.control import ask_node

    answer = ask_node(own(data_dir), "node.renew_presets")
    if as_json:
        c.print_json(answer)
        return
    for name, preset in answer["presets"].items():
        opened = [f"{r.get('host') or r.get('cidr')}:{','.join(map(str, r['ports']))}" for r in preset.get("rules", ())]
        print(f"{name}: {', '.join(opened) or 'as before: ' + preset['problem']}")
    print(f"{len(answer['sandboxes'])} running sandboxes have other rules now")
