"""`bellglass update ID`: another lifetime, idle timeout or labels for a sandbox that runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bellglass.cli import _common as c
from bellglass.errors import InvalidRequest
from bellglass.sdk._face import Sandbox


def command(
    id: Annotated[str, typer.Argument(help="The sandbox.")],
    lifetime: Annotated[str | None, typer.Option(help="How long it lives from now on; may be shorter.")] = None,
    keep_for: Annotated[str | None, typer.Option(help="It lives at least so long from now; never shortens.")] = None,
    expires_at: Annotated[str | None, typer.Option(metavar="TIME", help="When it ends.")] = None,
    idle_timeout: Annotated[str | None, typer.Option(metavar="TIME|none", help="How long it may be idle.")] = None,
    label: c.Label = None,
    no_label: Annotated[
        list[str] | None, typer.Option("--no-label", metavar="KEY", help="Take this label away. Repeat it.")
    ] = None,
    as_json: c.JsonFlag = False,
) -> None:
    changes: dict[str, Any] = c.given(lifetime=lifetime, keep_for=keep_for, expires_at=expires_at)
    if idle_timeout is not None:
        changes["idle_timeout"] = None if idle_timeout == "none" else idle_timeout
    if not changes and not label and not no_label:
        raise InvalidRequest("nothing to change", hint="`bellglass update --help` lists what can be")
    box = Sandbox.connect(id)
    try:
        if label or no_label:
            kept = {key: value for key, value in box.labels.items() if key not in (no_label or ())}
            changes["labels"] = kept | c.pairs(label, "--label")
        info = box.update(**changes)
    finally:
        box.close()
    if as_json:
        c.print_json(info)
    else:
        labels = ",".join(f"{key}={value}" for key, value in info.labels.items())
        c.print_table(["id", "state", "ends", "labels"], [(info.id, info.state, info.expires_at, labels)])
