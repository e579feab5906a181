"""`bellglass metrics ID`: what a sandbox uses now, and with `--since` what it has used."""

from __future__ import annotations

from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.model import SandboxMetrics, parse_time
from bellglass.sdk._face import Sandbox
from bellglass.units import format_size


def command(
    id: Annotated[str, typer.Argument(help="The sandbox.")],
    since: Annotated[
        str | None, typer.Option(help='Also earlier: from a time, or back from now such as "15m".')
    ] = None,
    as_json: c.JsonFlag = False,
) -> None:
    box = Sandbox.connect(id)
    try:
        samples = box.metrics(start=since, limit=1 if since is None else None)
    finally:
        box.close()
    if as_json:
        for sample in samples:
            c.print_json(sample)
        return
    c.print_table(["time", "cpu", "memory", "cache", "disk"], map(_row, samples))


def _row(sample: SandboxMetrics) -> tuple[str, ...]:
    return (
        parse_time(sample.time).astimezone().strftime("%Y-%m-%d %H:%M:%S"),
        f"{sample.cpu_percent:.1f} % of {sample.cpus:g}",
        f"{format_size(sample.memory_used_bytes)} of {format_size(sample.memory_bytes)}",
        format_size(sample.memory_cache_bytes),
        f"{format_size(sample.disk_used_bytes)} of {format_size(sample.disk_bytes)}",
    )
