"""`bellglass run [OPTIONS] -- COMMAND...`: a sandbox is created, the command runs in it, the sandbox is deleted."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.cli._execute import execute
from bellglass.sdk._face import Sandbox


def command(
    words: c.Words,
    template: Annotated[str, typer.Option("--template", "-t", help="Template to start from.")] = "base",
    timeout: Annotated[
        str | None, typer.Option(help='Kill it after this long, such as "30s"; default 5m, at most 10m.')
    ] = None,
    cpus: c.Cpus = None,
    memory: c.Memory = None,
    disk: c.Disk = None,
    pids: c.Pids = None,
    lifetime: c.Lifetime = None,
    env: c.Env = None,
    label: c.Label = None,
    input: c.Input = None,
    owner: c.Owner = None,
    isolation: c.Isolation = None,
    at_least: c.AtLeast = None,
    network: c.Mode = None,
    allow: c.Allow = None,
    preset: c.Preset = None,
    deny: c.Deny = None,
    no_identity: c.NoIdentity = False,
    user: c.User = None,
    cwd: c.Cwd = None,
    shell: c.Shell = False,
    interactive: c.Interactive = False,
    as_json: c.JsonFlag = False,
) -> int:
    # A terminated client must not leave its sandbox behind: the block below is to be left as by an exception.
    signal.signal(signal.SIGTERM, _stop)
    options = c.given(
        cpus=cpus,
        memory=memory,
        disk=disk,
        pids=pids,
        lifetime=lifetime,
        labels=c.pairs(label, "--label"),
        inputs=c.inputs(input),
        owner=owner,
        isolation=isolation,
        at_least=at_least,
        network=c.network(network, allow, preset, deny),
        identity=False if no_identity else None,
    )
    environment = c.pairs(env, "--env", environment=True)
    with Sandbox(template, **options) as box:
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


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
