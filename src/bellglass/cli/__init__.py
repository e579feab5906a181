"""The command line. One module per noun, imported when its noun is used, so that `--help` stays fast.

Standard output carries the result alone: text for people, or with `--json` one JSON document (one per line where there
are many). Errors are one line on standard error with the next step below it; no traceback unless
BELLGLASS_TRACEBACK is set. Exit codes: the command's own for `run` and `exec`, 1 for an error, 2 for wrong usage,
130 after ctrl-c.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import typer

import bellglass
from bellglass.errors import BellglassError


class Noun(NamedTuple):
    """`target` is `module:name`: a function with typer's annotations, or a Typer app that has verbs of its own."""

    target: str
    help: str


NOUNS: dict[str, Noun] = {
    "up": Noun("bellglass.cli.up:command", "Start server, node and helper on this machine."),
    "down": Noun("bellglass.cli.down:command", "Stop them; sandboxes run on unless told otherwise."),
    "status": Noun("bellglass.cli.status:command", "Show what runs, with versions, tiers and capacity."),
    "doctor": Noun("bellglass.cli.doctor:command", "Try what this machine needs, and say how to get the rest."),
    "run": Noun("bellglass.cli.run:command", "Run a command in a sandbox of its own."),
    "create": Noun("bellglass.cli.create:command", "Create a sandbox and print its id."),
    "ls": Noun("bellglass.cli.ls:command", "List sandboxes."),
    "update": Noun("bellglass.cli.update:command", "Change a sandbox's lifetime, idle timeout or labels."),
    "exec": Noun("bellglass.cli.exec:command", "Run a command in a sandbox."),
    "shell": Noun("bellglass.cli.shell:command", "A login shell on a terminal in a sandbox."),
    "run-code": Noun("bellglass.cli.run_code:command", "Run code in a sandbox's interpreter, which keeps its state."),
    "cp": Noun("bellglass.cli.cp:command", "Copy files and folders into and out of a sandbox."),
    "watch": Noun("bellglass.cli.watch:command", "Show what changes in a folder of a sandbox, as it happens."),
    "logs": Noun("bellglass.cli.logs:command", "Show an execution's output."),
    "metrics": Noun("bellglass.cli.metrics:command", "Show what a sandbox uses, now or over time."),
    "events": Noun("bellglass.cli.events:command", "Show or follow what happened, refused egress among it."),
    "network": Noun("bellglass.cli.network:command", "Show or replace what a sandbox may reach."),
    "rm": Noun("bellglass.cli.rm:command", "Delete sandboxes."),
    "publish": Noun("bellglass.cli.publish:command", "Give a port of a sandbox an URL."),
    "unpublish": Noun("bellglass.cli.publish:unpublish", "Take the URL of a port away."),
    "ports": Noun("bellglass.cli.publish:ports", "List the published ports of a sandbox."),
    "previews": Noun("bellglass.cli.previews:app", "Published ports of this installation: ca."),
    "presets": Noun("bellglass.cli.presets:app", "What the node's package tools open: renew."),
    "keys": Noun("bellglass.cli.keys:app", "API keys: create, ls, rm."),
    "compat": Noun("bellglass.cli.compat:app", "Programs written for other platforms: e2b."),
    "limits": Noun("bellglass.cli.limits:app", "Limits of projects: show, set."),
    "pools": Noun("bellglass.cli.pools:app", "Warm pools: set, ls, rm."),
    "quarantine": Noun("bellglass.cli.quarantine:app", "Sandboxes that the database does not know: ls, adopt, rm."),
    "templates": Noun("bellglass.cli.templates:app", "Templates: ls, build."),
}
ENDS_IN_COMMAND = ("run", "exec")


def _program(noun: str | None) -> typer.Typer:
    """The program with one noun loaded, or with all of them as names and help texts."""
    program = typer.Typer(
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Sandboxes for AI agents on your own machines.",
    )

    @program.callback()
    def top(
        version: bool = typer.Option(False, "--version", is_eager=True, callback=_version, help="Print the version."),
    ) -> None:
        pass

    for name, (target, help) in NOUNS.items():
        if noun is None:
            program.command(name, help=help)(_nothing)
        elif name == noun:
            module, attribute = target.split(":")
            loaded = getattr(importlib.import_module(module), attribute)
            if isinstance(loaded, typer.Typer):
                program.add_typer(loaded, name=name, help=help)
            elif name in ENDS_IN_COMMAND:
                from bellglass.cli._words import EndsInCommand

                program.command(name, help=help, cls=EndsInCommand)(loaded)
            else:
                program.command(name, help=help)(loaded)
    return program


def _nothing() -> None:
    raise AssertionError("only the help of this command was wanted")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bellglass {bellglass.__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    noun = next((word for word in words if not word.startswith("-")), None)
    if noun is not None and noun not in NOUNS:
        return _unknown(noun)
    if (noun is None and not words) or (noun and words == [noun] and NOUNS[noun].target.endswith(":app")):
        main([*words, "--help"])
        return 2
    try:
        result = _program(noun)(words, standalone_mode=False, prog_name="bellglass")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BellglassError as error:
        return _fail(error.message, error.hint)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        _fail(error.format_message(), f"`{context.command_path if context else 'bellglass'} --help` shows how")
        return error.exit_code
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`): nothing more can be printed, not even by the interpreter's own flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if os.environ.get("BELLGLASS_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(f"{error.filename}: {error.strerror}", None)
        return _fail(f"{type(error).__name__}: {error}", "BELLGLASS_TRACEBACK=1 shows where")


def _unknown(noun: str) -> int:
    import difflib

    close = difflib.get_close_matches(noun, NOUNS, n=1)
    _fail(f"there is no command {noun!r}", f"did you mean `{close[0]}`?" if close else "`bellglass --help` lists them")
    return 2


def _fail(message: str, hint: str | None) -> int:
    """Messages quote what sandboxes said."""
    from bellglass.cli._common import plain  # later than the help

    first, *more = message.splitlines() or [""]
    print(f"error: {plain(first)}" if first else "error: ", file=sys.stderr)
    for line in more:
        print(plain(line) if line else "", file=sys.stderr)
    if hint:
        print(f"hint: {plain(hint)}", file=sys.stderr)
    return 1
