"""`bellglass create`: a sandbox that stays until its lifetime ends or `rm` does."""

from __future__ import annotations

from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.sdk._face import Sandbox


def command(
    template: Annotated[str, typer.Option("--template", "-t", help="Template to start from.")] = "base",
    name: Annotated[str | None, typer.Option(help="A name of its own in the project.")] = None,
    get_or_create: Annotated[bool, typer.Option(help="With --name: take the one that runs under it.")] = False,
    cpus: c.Cpus = None,
    memory: c.Memory = None,
    disk: c.Disk = None,
    pids: c.Pids = None,
    lifetime: c.Lifetime = None,
    idle_timeout: Annotated[str | None, typer.Option(help="End it after this long without use.")] = None,
    env: c.Env = None,
    label: c.Label = None,
    input: c.Input = None,
    owner: c.Owner = None,
    user: c.User = None,
    workdir: Annotated[str | None, typer.Option(help="Where commands start.")] = None,
    isolation: c.Isolation = None,
    at_least: c.AtLeast = None,
    network: c.Mode = None,
    allow: c.Allow = None,
    preset: c.Preset = None,
    deny: c.Deny = None,
    no_identity: c.NoIdentity = False,
    auto_publish: c.AutoPublish = None,
    auto_publish_host: c.AutoPublishHost = None,
    as_json: c.JsonFlag = False,
) -> None:
    options = c.given(
        cpus=cpus,
        memory=memory,
        disk=disk,
        pids=pids,
        lifetime=lifetime,
        idle_timeout=idle_timeout,
        env=c.pairs(env, "--env", environment=True),
        labels=c.pairs(label, "--label"),
        inputs=c.inputs(input),
        owner=owner,
        user=user,
        workdir=workdir,
        isolation=isolation,
        at_least=at_least,
        network=c.network(network, allow, preset, deny),
        identity=False if no_identity else None,
        auto_publish=auto_publish,
        auto_publish_host=auto_publish_host,
    )
    if get_or_create:
        if name is None:
            raise typer.BadParameter("it needs --name", param_hint="--get-or-create")
        box = Sandbox.get_or_create(template, name=name, **options)
    else:
        box = Sandbox(template, **c.given(name=name), **options)
    if as_json:
        c.print_json(box._known)
    else:
        print(box.id)
    box.close()
