"""Paths and who acts. Clients count on a program that may read and write everything and gives what it makes to the
user, in whose home relative paths begin."""

from __future__ import annotations

from typing import Any

from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.files.paths import check_path
from bellglass.server.sandboxes import guard


def checked(path: str, field: str = "path") -> str:
    """An empty one is the home. Raises InvalidRequest."""
    return check_path(path or ".", field)


def acting(call: Call) -> dict[str, Any]:
    """The parameters of every file operation. Raises what `guard.running` does."""
    user = call.user or guard.running(call.services.reader, call.project_id, call.sandbox_id).user
    return {"user": "root", "owner": user, "base": "~"}
