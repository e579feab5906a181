"""`bellglass rm ID...`: end sandboxes. All are tried; the exit code is 1 when one could not be deleted."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.errors import BellglassError, Unauthorized
from bellglass.sdk._config import resolve
from bellglass.sdk._http import sandbox_path
from bellglass.sdk._sync.transport import Transport


def command(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The sandboxes.")], as_json: c.JsonFlag = False
) -> int:
    transport = Transport(resolve())
    code = 0
    try:
        for id in ids:
            try:
                transport.request("DELETE", sandbox_path(id), idempotent=True)
            except Unauthorized:
                raise
            except BellglassError as error:
                code = 1
                print(f"error: {c.plain(id)}: {c.plain(error.message)}", file=sys.stderr)
                continue
            if as_json:
                c.print_json({"id": id, "deleted": True})
            else:
                print(id)
    finally:
        transport.close()
    return code
