"""`bellglass down`: stop the daemons; sandboxes go on unless told otherwise."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from bellglass.cli._installation import Folder, own


def command(
    data_dir: Folder = None,
    sandboxes: Annotated[bool, typer.Option("--sandboxes", help="Delete every sandbox first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Stop server, node and helper. Without --sandboxes the sandboxes run on and the next `up` finds them."""
    from bellglass.supervise import down

    def say(step: str) -> None:
        if not as_json:
            print(f"  ok  {step}", file=sys.stdout, flush=True)

    begun = time.monotonic()
    outcome = down.stop(own(data_dir), sandboxes=sandboxes, say=say)
    if as_json:
        print(json.dumps(outcome._asdict()))
    else:
        count = outcome.left_running
        left = f", {count} {'sandbox runs' if count == 1 else 'sandboxes run'} on" if count else ""
        if outcome.left_waiting:
            left += f", {outcome.left_waiting} in warm pools wait on"
        print(f"bellglass is down{left} ({time.monotonic() - begun:.1f} s)")
