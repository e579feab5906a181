"""`bellglass events [ID]`: what happened to a sandbox, or to all of the project; with `-f` what comes as well."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated, Any

import typer

from bellglass.cli import _common as c
from bellglass.model import Event, parse_time
from bellglass.sdk._config import resolve
from bellglass.sdk._http import sandbox_path
from bellglass.sdk._sync.events import read_events
from bellglass.sdk._sync.transport import Transport

COLUMNS = ("time", "sandbox", "what", "destination", "rule")
WIDTHS = (19, 22, 17, 34, 0)
TAIL = 100


def command(
    id: Annotated[str | None, typer.Argument(help="The sandbox; by default all of the project.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    type: Annotated[
        list[str] | None, typer.Option("--type", "-t", help='Such as egress.refused or "egress.*". Repeat it.')
    ] = None,
    since: Annotated[str | None, typer.Option(help='Only later ones: a time, or back from now such as "15m".')] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, max=1000, help="Only the newest so many.")] = None,
    owner: c.Owner = None,
    label: c.Label = None,
    as_json: c.JsonFlag = False,
) -> None:
    path = "/v1/events" if id is None else sandbox_path(id) + "/events"
    more: list[tuple[str, Any]] = []
    if id is None:
        more = [("owner", owner), *(("label", word) for word in label or ())]
        tail = TAIL if tail is None and since is None else tail
    transport = Transport(resolve())
    events = read_events(transport, path, follow=follow, types=type or (), since=since, tail=tail, more=more)
    with closing(transport), closing(events):  # type: ignore[type-var]
        if as_json:
            for event in events:
                c.print_json(event)
                sys.stdout.flush()
        elif follow:
            _print(tuple(column.upper() for column in COLUMNS))
            for event in events:
                _print(_row(event))
        else:
            c.print_table(COLUMNS, map(_row, events))


def _print(row: tuple[Any, ...]) -> None:
    """As they come: no column can wait for the widest cell."""
    cells = (c.plain(cell).ljust(width) for cell, width in zip(row, WIDTHS, strict=True))
    print("  ".join(cells).rstrip(), flush=True)


def _row(event: Event) -> tuple[Any, ...]:
    time = parse_time(event.time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    data = event.data
    if not event.type.startswith("egress.") or "reason" not in data:
        told = " ".join(f"{name}={value}" for name, value in data.items() if isinstance(value, (str, int)))
        return time, event.sandbox_id, event.type, None, told
    where = data.get("host") or data.get("address") or "?"
    if data.get("port") is not None:
        where = f"{where}:{data['port']}"
    if data.get("count", 1) > 1:
        where = f"{where} ({data['count']} times)"
    return time, event.sandbox_id, event.type, where, f"{data.get('rule')}: {data.get('reason')}"
