"""`bellglass pools set|ls|rm`: machines that wait for creates, with the admin key of the installation (see keys)."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated
from urllib.parse import quote

import typer

from bellglass.cli import _common as c
from bellglass.cli.keys import DataDir, admin_transport
from bellglass.model import Pool
from bellglass.units import format_size

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
Template = Annotated[str, typer.Argument(metavar="TEMPLATE", help="The template that they are made from.")]


@app.command("set", help="Keep machines of a template ready.")
def set_pool(
    template: Template,
    size: Annotated[int, typer.Option(help="How many are to be ready.")],
    ceiling: Annotated[
        int | None, typer.Option(help="Make none while so many exist, claimed sandboxes counted; default: no bound.")
    ] = None,
    cpus: c.Cpus = None,
    memory: c.Memory = None,
    disk: c.Disk = None,
    pids: c.Pids = None,
    isolation: c.Isolation = None,
    data_dir: DataDir = None,
    as_json: c.JsonFlag = False,
) -> None:
    body = {"size": size, "ceiling": ceiling}
    body |= c.given(cpus=cpus, memory=memory, disk=disk, pids=pids, isolation=isolation)
    with closing(admin_transport(data_dir)) as transport:
        answer = transport.request("PUT", f"/v1/pools/{quote(template, safe='')}", json=body, idempotent=True)
    pool = Pool.from_json(answer.json())
    if as_json:
        c.print_json(pool)
    else:
        print(pool.template)


@app.command("ls", help="List the pools with what they have, and how many creates found a machine.")
def ls(data_dir: DataDir = None, as_json: c.JsonFlag = False) -> None:
    with closing(admin_transport(data_dir)) as transport:
        items = transport.request("GET", "/v1/pools", idempotent=True).json()["items"]
    pools = [Pool.from_json(item) for item in items]
    if as_json:
        for pool in pools:
            c.print_json(pool)
        return
    columns = ["template", "size", "ceiling", "cpus", "memory", "disk", "ready", "filling", "claimed"]
    c.print_table([*columns, "hits", "misses", "problem"], [_row(pool) for pool in pools])


def _row(pool: Pool) -> list[object]:
    shape = [pool.template, pool.size, pool.ceiling, f"{pool.cpus:g}"]
    shape += [format_size(pool.memory_bytes), format_size(pool.disk_bytes)]
    if (now := pool.status) is None:
        return [*shape, *[None] * 5, "the node is out of reach"]
    misses = ", ".join(f"{count} {reason}" for reason, count in now.misses.items() if count)
    return [*shape, now.ready, now.filling, now.claimed, now.hits, misses or 0, now.problem]


@app.command("rm", help="Give up pools: machines that wait go, sandboxes that were claimed stay.")
def rm(
    templates: Annotated[list[str], typer.Argument(metavar="TEMPLATE...", help="The pools' templates.")],
    data_dir: DataDir = None,
    as_json: c.JsonFlag = False,
) -> None:
    with closing(admin_transport(data_dir)) as transport:
        for template in templates:
            transport.request("DELETE", f"/v1/pools/{quote(template, safe='')}")
            if as_json:
                c.print_json({"template": template, "deleted": True})
            else:
                print(template)
