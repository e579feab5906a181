"""What the nouns share: the options that several have, and how results are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from bellglass.errors import InvalidRequest
from bellglass.model import Record, parse_time
from bellglass.sdk._network import Network

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Cpus = Annotated[float | None, typer.Option(help="CPUs, such as 2 or 0.5.")]
Memory = Annotated[str | None, typer.Option(help='Memory, such as "512MiB".')]
Disk = Annotated[str | None, typer.Option(help='Disk, such as "10GiB".')]
Pids = Annotated[int | None, typer.Option(help="Most processes at once.")]
Lifetime = Annotated[str | None, typer.Option(help='How long it lives, such as "15m".')]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="Environment; NAME alone passes yours on."),
]
Label = Annotated[list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Label.")]
Input = Annotated[
    list[str] | None, typer.Option("--input", metavar="[NAME=]FILE", help="File that appears under /inputs.")
]
Owner = Annotated[str | None, typer.Option(help="The end user for whom it is.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="User inside the sandbox.")]
Words = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")]
Cwd = Annotated[str | None, typer.Option(help="Working directory.")]
Shell = Annotated[bool, typer.Option("--shell", "-c", help="The words are one line for the shell.")]
Interactive = Annotated[bool, typer.Option("--interactive", "-i", help="Pass standard input on.")]
Isolation = Annotated[str | None, typer.Option(help="Exact tier: process, container, gvisor, microvm.")]
AtLeast = Annotated[str | None, typer.Option(help="Weakest tier that will do.")]

Mode = Annotated[
    str | None, typer.Option("--network", metavar="deny|open", help="Reach nothing, or all that is public.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="HOST[:PORT]", help="Reach this alone: a name, *.name or CIDR; port 443. Repeat it."
    ),
]
Deny = Annotated[
    list[str] | None,
    typer.Option("--deny", metavar="CIDR", help="With --network open: all but this address or range. Repeat it."),
]
Preset = Annotated[
    list[str] | None,
    typer.Option("--preset", metavar="NAME", help="Reach what a tool needs: pip, npm, apt. Repeat it."),
]
AutoPublish = Annotated[
    str | None, typer.Option(metavar="private|public", help="Publish each port at its first visit.")
]
AutoPublishHost = Annotated[
    str | None, typer.Option(metavar="HOST", help="What programs at such ports get as Host; ${PORT} is the port.")
]
NoIdentity = Annotated[bool, typer.Option("--no-identity", help="Programs inside can't call the API as the sandbox.")]


def network(
    mode: str | None, allow: Sequence[str] | None, presets: Sequence[str] | None, deny: Sequence[str] | None
) -> str | Network | None:
    """The network that the options name; None for none. Raises InvalidRequest for two that exclude each other."""
    if deny:
        if mode != "open" or allow or presets:
            raise InvalidRequest(
                f"--deny {deny[0]}: goes with --network open alone", hint="anything else opens only what it names"
            )
        return Network(mode="open", deny=deny)
    if not allow and not presets:
        return mode
    if mode is not None:
        raise InvalidRequest(
            f"--network {mode}: goes with neither --allow nor --preset", hint="these name all that is open"
        )
    return Network(presets=presets or (), allow=allow or ())


def pairs(given: Iterable[str] | None, option: str, *, environment: bool = False) -> dict[str, str]:
    """`["a=b"]` as a mapping. Raises InvalidRequest naming the option and the word."""
    import os

    found: dict[str, str] = {}
    for word in given or ():
        name, equals, value = word.partition("=")
        if not equals and name and environment:
            if name not in os.environ:
                raise InvalidRequest(f"{option}: {name!r} is not set here", hint=f"set it, or give {name}=VALUE")
            value = os.environ[name]
        elif not equals or not name:
            raise InvalidRequest(f"{option}: {word!r} is not of the form {'NAME' if environment else 'KEY'}=VALUE")
        found[name] = value
    return found


def inputs(given: Iterable[str] | None) -> dict[str, str | bytes | Path]:
    files: dict[str, str | bytes | Path] = {}
    for word in given or ():
        name, equals, file = word.partition("=")
        path = Path(file if equals else name)
        files[name if equals else path.name] = path
    return files


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None and value != {}}


def print_json(value: Any) -> None:
    """One document on one line. What a terminal would obey, or no encoding has, is escaped: sandboxes wrote it."""
    if isinstance(value, Record):
        value = value.to_json()
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        text = "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)
    sys.stdout.write(text + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A plain table: aligned, uncut when it is piped. Cells are made harmless: they hold what others wrote."""
    shown = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(columns), *shown]) for i in range(len(columns))]
    for row in [[column.upper() for column in columns], *shown]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def plain(cell: Any) -> str:
    """Text for a terminal: no control characters, which could move the cursor or worse."""
    text = "-" if cell is None or cell == "" else str(cell)
    return "".join(character if character.isprintable() else "?" for character in text)


def age(moment: str | None) -> str:
    """`3m` since (or until) a time."""
    if moment is None:
        return "-"
    seconds = abs((datetime.now(UTC) - parse_time(moment)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"
