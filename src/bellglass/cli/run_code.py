"""`bellglass run-code [OPTIONS] ID [CODE]`: code in a context of a sandbox that is there, which keeps its state."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bellglass.cli import _common as c
from bellglass.errors import InvalidRequest
from bellglass.sdk._face import Sandbox
from bellglass.sdk._runs import Result, RunResult

PICTURES = ("png", "jpeg", "pdf", "svg")


def command(
    id: Annotated[str, typer.Argument(help="The sandbox.")],
    code: Annotated[str | None, typer.Argument(help="The code; without it, standard input.")] = None,
    language: Annotated[
        str | None, typer.Option("--language", "-l", help="python, javascript or bash: its default context.")
    ] = None,
    context: Annotated[str | None, typer.Option("--context", help="The context with this id.")] = None,
    timeout: Annotated[
        str | None, typer.Option(help='Interrupt it after this long, such as "30s"; default 5m.')
    ] = None,
    env: c.Env = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write pictures there as result-1.png and so on.")
    ] = None,
    as_json: c.JsonFlag = False,
) -> int:
    if save is not None and not save.is_dir():
        raise InvalidRequest(f"--save: {save} is no folder", hint="make it first")
    source = code if code is not None else sys.stdin.read()
    box = Sandbox.connect(id)
    try:
        result = box.run_code(
            source,
            context=context,
            language=language,
            timeout=timeout,
            env=c.pairs(env, "--env", environment=True),
            on_stdout=None if as_json else lambda text: _write(sys.stdout, text),
            on_stderr=None if as_json else lambda text: _write(sys.stderr, text),
        )
    finally:
        box.close()
    saved = _save(result.results, save) if save is not None else []
    if as_json:
        c.print_json(as_document(result) | ({"saved": saved} if save is not None else {}))
    else:
        _show(result, saved)
    return 0 if result.ok else 1


def _show(result: RunResult, saved: list[str]) -> None:
    for shown in result.results:
        if shown.text is not None:
            _write(sys.stdout, shown.text.rstrip("\n") + "\n")
    for path in saved:
        print(f"bellglass: written: {path}", file=sys.stderr)
    if result.error is not None and not result.timed_out:
        _write(sys.stderr, (result.error.traceback or f"{result.error.name}: {result.error.value}").rstrip("\n") + "\n")
    if result.timed_out:
        print("bellglass: the code ran into its timeout (--timeout sets another)", file=sys.stderr)


def _write(stream: Any, text: str) -> None:
    # Lone surrogates come out of sandboxes too.
    stream.buffer.write(text.encode("utf-8", "replace"))
    stream.flush()


def _save(results: list[Result], folder: Path) -> list[str]:
    saved = []
    for number, result in enumerate(results, 1):
        for kind in PICTURES:
            content = getattr(result, kind)
            if content is not None:
                path = folder / f"result-{number}.{kind}"
                path.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
                saved.append(str(path))
    return saved


def as_document(result: RunResult) -> dict[str, Any]:
    return {
        "run_id": result.run_id,
        "context_id": result.context_id,
        "ok": result.ok,
        "execution_count": result.execution_count,
        "results": [{"main": one.is_main, "data": one.data, "dropped": one.dropped} for one in result.results],
        "stdout": result.stdout,
        "stderr": result.stderr,
        "error": asdict(result.error) if result.error is not None else None,
        "timed_out": result.timed_out,
        "interrupted": result.interrupted,
        "state_lost": result.state_lost,
        "truncated": result.truncated,
        "duration_s": result.duration_s,
    }
