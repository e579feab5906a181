"""Which process is meant: by its pid inside the sandbox, or by the tag that it was started with."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from bellglass.errors import NotFound
from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.errors import ConnectError
from bellglass.server.compat.e2b.envd.messages import Message

KEPT_S = 30.0
"""How long a late Connect still gets the end of a process."""
HIDDEN_TAGS = "context:"
"""Of executions that run an interpreter's kernels."""


def is_hidden(record: dict[str, Any]) -> bool:
    return str(record.get("tag") or "").startswith(HIDDEN_TAGS)


async def find(call: Call, message: Message, *, ended: bool = False) -> dict[str, Any]:
    """The record of the execution that `process` of a message selects: one that runs, with `ended` also one that has
    ended a moment ago. Raises ConnectError."""
    selector = message.message("process")
    if selector is None or selector.has("pid") == selector.has("tag"):
        raise ConnectError("invalid_argument", "process: needs a pid or a tag")
    if selector.has("pid"):
        pid, tag = selector.number("pid"), None
        unknown = ConnectError("not_found", f"process with pid {pid} not found")
    else:
        pid, tag = None, selector.text("tag")
        unknown = ConnectError("not_found", f"process with tag {tag!r} not found")
    if pid == 0 or tag == "":
        raise unknown
    try:
        record = await call.services.executions.find(
            call.project_id, call.sandbox_id, call.request_id, pid=pid, tag=tag
        )
    except NotFound as error:
        if type(error) is not NotFound or error.details.get("kind") == "sandbox":
            raise
        raise unknown from None
    if is_hidden(record):
        raise unknown
    if record["state"] == "running" or (ended and _age_s(record) < KEPT_S):
        call.context.objects["execution_id"] = str(record["id"])
        return record
    raise unknown


def missing(record: dict[str, Any]) -> ConnectError:
    """Of one that has ended since it was found."""
    return ConnectError("not_found", f"process with pid {record['pid']} not found")


def _age_s(record: dict[str, Any]) -> float:
    ended_at = record.get("ended_at")
    return time.time() - datetime.fromisoformat(ended_at).timestamp() if ended_at else 0.0
