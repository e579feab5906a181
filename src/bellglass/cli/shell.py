"""`bellglass shell [SANDBOX]`: a login shell on a terminal in a sandbox, over connections that break."""

from __future__ import annotations

import os
import re
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.cli._tty import Keyboard, own_size
from bellglass.errors import BellglassError, InvalidRequest, NotSupported
from bellglass.sdk._face import Sandbox
from bellglass.sdk._sync.executions import Execution

LOGIN = 'exec "${SHELL:-/bin/sh}" -l'
_TERM = re.compile(r"[A-Za-z0-9._+-]{1,64}")


def command(
    id: Annotated[str | None, typer.Argument(metavar="[SANDBOX]", help="Without one: a new one, for as long.")] = None,
    run: Annotated[str | None, typer.Option("--command", "-c", help="A line for the shell; no login then.")] = None,
    attach: Annotated[str | None, typer.Option(metavar="EXECUTION", help="Go on with a terminal that runs.")] = None,
    template: Annotated[str, typer.Option("--template", "-t", help="Of the new sandbox.")] = "base",
    env: c.Env = None,
    user: c.User = None,
    cwd: c.Cwd = None,
) -> int:
    if sys.platform == "win32":
        raise NotSupported("`bellglass shell` needs a terminal of Linux or macOS", hint="`bellglass exec` works here")
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGHUP, _stop)
    if attach is not None and id is None:
        raise InvalidRequest("--attach: which sandbox is it in?", hint=f"bellglass shell SANDBOX --attach {attach}")
    if run is None and attach is None and not os.isatty(0):
        raise InvalidRequest(
            "standard input is no terminal, so nobody could log out", hint="`bellglass exec -i` passes a pipe on"
        )
    environment = c.pairs(env, "--env", environment=True)
    term = os.environ.get("TERM", "")
    if "TERM" not in environment and _TERM.fullmatch(term) and term != "dumb":
        environment["TERM"] = term
    box = Sandbox(template) if id is None else Sandbox.connect(id)
    kept = id is not None
    try:
        if attach is not None:
            execution = box.execution(attach)
        else:
            execution = box.start(run or LOGIN, terminal=own_size(), env=environment, user=user, cwd=cwd)
        code = _live(execution, fresh=attach is None)
        if code is None:
            kept = True
            print(f"it goes on: bellglass shell {box.id} --attach {execution.id}", file=sys.stderr)
        return code or 0
    finally:
        if kept:
            box.close()
        else:
            box.delete()


def _live(execution: Execution, *, fresh: bool) -> int | None:
    """Until the program has ended: its exit code; None when the user left it."""
    attachment = execution.attach()
    left = False
    try:
        with Keyboard(attachment) as keyboard:
            try:
                for data in attachment:
                    _show(data)
            finally:
                left = keyboard.left
    except (SystemExit, KeyboardInterrupt, BrokenPipeError):
        # Whoever hangs up ends what he began, as with a terminal; what he only came to goes on.
        if fresh:
            _kill(execution)
        raise
    finally:
        attachment.close()
    if attachment.ended is None:
        return None if left else 1
    if attachment.ended.oom_killed:
        print("bellglass: it was killed: out of memory", file=sys.stderr)
    return attachment.ended.exit_code


def _show(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _kill(execution: Execution) -> None:
    try:
        execution.kill()
    except BellglassError as error:
        print(f"bellglass: it could not be killed: {c.plain(error)}", file=sys.stderr)


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
