"""`bellglass network ID`: show what a sandbox may reach, or with options replace it."""

from __future__ import annotations

from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.model import NetworkPolicy, SandboxNetwork
from bellglass.sdk._face import Sandbox


def command(
    id: Annotated[str, typer.Argument(help="The sandbox.")],
    network: c.Mode = None,
    allow: c.Allow = None,
    preset: c.Preset = None,
    deny: c.Deny = None,
    as_json: c.JsonFlag = False,
) -> None:
    wanted = c.network(network, allow, preset, deny)
    box = Sandbox.connect(id)
    try:
        found = box.network.get() if wanted is None else box.network.set(wanted)
    finally:
        box.close()
    if as_json:
        c.print_json(found)
    else:
        _print(found)


def _print(found: SandboxNetwork) -> None:
    """The mode on the first line; then a line a rule, presets resolved while it runs, or a line a range it denies."""
    print(found.network.mode if isinstance(found.network, NetworkPolicy) else found.network)
    if not isinstance(found.network, NetworkPolicy):
        return
    if found.network.mode == "open":
        c.print_table(["denied"], [(cidr,) for cidr in found.network.deny])
        return
    if found.resolved is None:
        rows = [(rule.host or rule.cidr, _ports(rule.ports), "allow") for rule in found.network.rules()]
        rows += [("", "", f"preset:{name}") for name in found.network.presets]
    else:
        rows = [(rule.host or rule.cidr, _ports(rule.ports), rule.origin) for rule in found.resolved]
    c.print_table(["destination", "ports", "from"], rows)


def _ports(ports: list[int] | str) -> str:
    return ports if isinstance(ports, str) else ",".join(map(str, ports))
