"""`bellglass exec [OPTIONS] ID -- COMMAND...`: run a command in a sandbox that is there."""

from __future__ import annotations

from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.cli._execute import execute
from bellglass.sdk._face import Sandbox


def command(
    id: Annotated[str, typer.Argument(help="The sandbox.")],
    words: c.Words,
    timeout: Annotated[
        str | None,
        typer.Option(help='Kill it after this long, such as "30s"; default 5m, at most 10m (any with --detach).'),
    ] = None,
    env: c.Env = None,
    user: c.User = None,
    cwd: c.Cwd = None,
    shell: c.Shell = False,
    interactive: c.Interactive = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave it running and print its id.")] = False,
    as_json: c.JsonFlag = False,
) -> int:
    environment = c.pairs(env, "--env", environment=True)
    box = Sandbox.connect(id)
    try:
        if detach:
            line = " ".join(words) if shell else words
            started = box.start(line, env=environment, cwd=cwd, user=user, timeout=timeout)
            if as_json:
                c.print_json(started.status())
            else:
                print(started.id)
            return 0
        return execute(
            box,
            words,
            interactive=interactive,
            as_json=as_json,
            shell=shell,
            env=environment,
            cwd=cwd,
            user=user,
            timeout=timeout,
        )
    finally:
        box.close()
