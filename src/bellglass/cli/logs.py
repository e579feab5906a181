"""`bellglass logs ID [EXECUTION]`: an execution's output, by default the newest one's; its bytes as they were.

With `--all` the lines of all of them, and what happened to the sandbox, in the order of time."""

from __future__ import annotations

import base64
import itertools
import shlex
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.errors import InvalidRequest, NotFound
from bellglass.model import LogLine, parse_time
from bellglass.sdk._face import Sandbox
from bellglass.sdk._results import OutputChunk


def command(
    id: Annotated[str, typer.Argument(help="The sandbox.")],
    execution: Annotated[str | None, typer.Argument(help="The execution; by default the newest.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until it ends.")] = False,
    offset: Annotated[int, typer.Option(min=0, help="Byte of the log to start at.")] = 0,
    list_all: Annotated[bool, typer.Option("--list", help="List the executions instead.")] = False,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="What all executions wrote, and what happened, line by line.")
    ] = False,
    search: Annotated[str | None, typer.Option(help="With --all: only lines that hold this text.")] = None,
    since: Annotated[str | None, typer.Option(help='With --all: from a time, or back from now such as "15m".')] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="With --all: the newest so many.")] = None,
    as_json: c.JsonFlag = False,
) -> None:
    if every and (follow or offset or list_all):
        raise InvalidRequest("--all: goes with none of --follow, --offset and --list", hint="leave it out")
    if not every and (search, since, tail) != (None, None, None):
        raise InvalidRequest("--search, --since, --tail: go with --all", hint="add --all")
    box = Sandbox.connect(id)
    try:
        if every:
            if tail is None:
                lines: Iterator[LogLine] = box.logs(search=search, start=since, execution=execution)
            else:
                found = box.logs(backward=True, search=search, start=since, execution=execution)
                lines = reversed([*itertools.islice(found, tail)])
            for line in lines:
                _show_line(line, as_json=as_json)
            return
        if list_all:
            _list(box, as_json=as_json)
            return
        if execution is None:
            newest = next(box.executions(), None)
            if newest is None:
                raise NotFound(f"nothing was run in {id} yet")
            execution = newest.id
        for chunk in box.execution(execution).output(follow=follow, offset=offset):
            _show(chunk, as_json=as_json)
    finally:
        box.close()


def _show_line(line: LogLine, *, as_json: bool) -> None:
    if as_json:
        c.print_json(line)
        return
    time = parse_time(line.time).astimezone().strftime("%H:%M:%S.%f")[:-3]
    whose = line.execution_id[-6:] if line.execution_id is not None else "-" * 6
    print(f"{time} {whose} {line.kind if line.execution_id else 'event':7} {c.plain(line.text)}")


def _list(box: Sandbox, *, as_json: bool) -> None:
    if as_json:
        for info in box.executions():
            c.print_json(info)
        return
    rows = []
    for info in box.executions():
        shown = info.command if isinstance(info.command, str) else shlex.join(info.command)
        rows.append((info.id, info.state, info.exit_code, c.age(info.started_at), info.output_bytes, shown[:60]))
    c.print_table(["id", "state", "code", "age", "bytes", "command"], rows)


def _show(chunk: OutputChunk, *, as_json: bool) -> None:
    if as_json:
        record = {"stream": chunk.stream, "offset": chunk.offset}
        if chunk.stream == "skipped":
            c.print_json({**record, "bytes": chunk.skipped_bytes})
        elif chunk.text.encode("utf-8") == chunk.data:
            c.print_json({**record, "text": chunk.text})
        elif chunk.data:
            c.print_json({**record, "b64": base64.b64encode(chunk.data).decode("ascii")})
        sys.stdout.flush()
    elif chunk.stream == "skipped":
        print(f"bellglass: {chunk.skipped_bytes} bytes of output were lost", file=sys.stderr)
    else:
        out = sys.stdout.buffer if chunk.stream == "stdout" else sys.stderr.buffer
        out.write(chunk.data)
        out.flush()
