"""`bellglass cp SOURCE DESTINATION`: files and folders, in (`./data ID:/path`) and out (`ID:/path ./data`).

`ID:path` is a path in a sandbox; relative ones start at its workdir. As with cp, a destination that is a folder gets
the source under its own name, and `.` of a source folder is its content.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

import typer

from bellglass.cli import _common as c
from bellglass.errors import FileMissing, InvalidRequest
from bellglass.ids import SANDBOX_ID
from bellglass.sdk._face import Sandbox


class Place(NamedTuple):
    box: str | None
    path: str


def parse_place(word: str) -> Place:
    """`sb...:path` is in a sandbox; everything else, a colon included, is here."""
    id, colon, path = word.partition(":")
    if colon and SANDBOX_ID.match(id):
        return Place(id, path or ".")
    return Place(None, word)


def command(
    source: Annotated[str, typer.Argument(help="PATH or ID:PATH.")],
    destination: Annotated[str, typer.Argument(help="ID:PATH or PATH.")],
    user: c.User = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    as_json: c.JsonFlag = False,
) -> None:
    here, there = parse_place(source), parse_place(destination)
    if (here.box is None) == (there.box is None):
        where = "on this machine" if here.box is None else "in a sandbox"
        raise InvalidRequest(
            f"{source!r} and {destination!r} are both {where}",
            hint="one of the two is ID:PATH in a sandbox, with an id (no name) from `bellglass ls`; the other is here",
        )
    box = Sandbox.connect(here.box or there.box or "")
    try:
        with _progress(source, shown=not quiet and not as_json and sys.stderr.isatty()) as on_progress:
            copy_in = there.box is not None
            place, left_out = (_in if copy_in else _out)(box, here.path, there.path, user, on_progress)
    finally:
        box.close()
    for name in left_out:
        print(f"bellglass: left out: {c.plain(name)} (it is special, or leads out of the folder)", file=sys.stderr)
    if as_json:
        c.print_json({"source": source, "destination": place, "left_out": left_out})


Report = Callable[[int, int | None], None] | None


def _in(box: Sandbox, source: str, destination: str, user: str | None, report: Report) -> tuple[str, list[str]]:
    local = Path(source)
    place = destination
    into = destination.endswith("/") or _is_folder(box, destination, user)
    content_only = source.endswith(("/.", "\\.")) or source == "."
    if into and not content_only:
        place = str(PurePosixPath(destination) / local.resolve().name)
    if local.is_dir():
        return f"{box.id}:{place}", box.files.upload_dir(local, place, user=user, on_progress=report)
    box.files.upload(local, place, user=user, on_progress=report)
    return f"{box.id}:{place}", []


def _out(box: Sandbox, source: str, destination: str, user: str | None, report: Report) -> tuple[str, list[str]]:
    local = Path(destination)
    content_only = source.endswith("/.") or source == "."
    if (local.is_dir() or destination.endswith("/")) and not content_only:
        name = PurePosixPath(source).name
        if name in ("", "..", "."):
            raise InvalidRequest(f"{source!r} has no name to copy it under", hint="name the destination in full")
        local.mkdir(parents=True, exist_ok=True)
        local /= name
    if box.files.stat(source, user=user).type == "dir":
        return str(local), box.files.download_dir(source, local, user=user, on_progress=report)
    box.files.download(source, local, user=user, on_progress=report)
    return str(local), []


def _is_folder(box: Sandbox, path: str, user: str | None) -> bool:
    try:
        return box.files.stat(path, user=user).type == "dir"
    except FileMissing:
        return False


@contextmanager
def _progress(what: str, *, shown: bool) -> Iterator[Report]:
    """A bar on standard error; without a total it counts."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(c.plain(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
