"""`bellglass up`: start server, node and helper on this box, a line per step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bellglass.datadir import DataDir, default_data_dir


def command(
    data_dir: Annotated[
        Path | None, typer.Option(help="The installation's folder.", show_default="/var/lib/bellglass")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="Address of the API; loopback unless told.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when the API answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print api_url, api_key and data_dir as JSON.")] = False,
) -> None:
    """Start the daemons, and write a client profile so that Sandbox("base") just works."""
    from bellglass.supervise import up
    from bellglass.supervise.profile import Profile

    data = DataDir((data_dir or default_data_dir()).absolute())

    def done(step: str, seconds: float) -> None:
        # Standard output belongs to the answer when that is JSON.
        print(f"  ok  {step}  ({seconds:.2f} s)", file=sys.stderr if as_json else sys.stdout, flush=True)

    building = up.build_progress()

    def say(step: str, seconds: float) -> None:
        if step.startswith(up.BUILD_PREFIX) and not as_json and sys.stdout.isatty():
            building.show(step.removeprefix(up.BUILD_PREFIX))
        else:
            building.stop()
            done(step, seconds)

    def ready(found: Profile) -> None:
        if as_json:
            print(
                json.dumps({"api_url": found.api_url, "api_key": found.api_key, "data_dir": found.data_dir}), flush=True
            )
        else:
            print(f"bellglass is up at {found.api_url}", flush=True)
            print('try: bellglass run -- python3 -c "print(42)"', flush=True)

    try:
        if detach:
            ready(up.run_detached(data, listen=listen, port=port, say=say))
        else:
            up.run_foreground(data, listen=listen, port=port, say=say, ready=ready)
    finally:
        building.stop()
