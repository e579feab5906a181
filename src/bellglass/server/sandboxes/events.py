"""What an event of the node's journal does to a sandbox's row.

Events of sandboxes that no row knows are passed over.
"""

from __future__ import annotations

from typing import Any

import structlog
from sqlalchemy import Connection

from bellglass.model import State, TerminationReason
from bellglass.server.events import refusals
from bellglass.server.sandboxes import store

_REASONS = frozenset(TerminationReason)
log = structlog.get_logger("bellglass.sandboxes")


def apply(connection: Connection, event: dict[str, Any]) -> None:
    """One event, in the transaction that moves the cursor past it."""
    kind, sandbox_id = event.get("kind"), event.get("sandbox_id")
    if kind == "sandbox.started":
        store.change(
            connection,
            str(sandbox_id),
            "sandbox.running",
            from_states=(State.CREATING,),
            of_generation=event.get("generation"),
            state=State.RUNNING,
            runtime=event.get("runtime"),
            runtime_version=event.get("runtime_version"),
            started_at=event.get("started_at") or event.get("at"),
            expires_at=event.get("expires_at"),
        )
    elif kind == "sandbox.ended":
        reason = event.get("reason")
        if reason not in _REASONS:  # a newer node's
            log.warning("unknown reason of an end", sandbox=sandbox_id, reason=reason)
            reason = TerminationReason.FAILED
        store.end(
            connection,
            str(sandbox_id),
            reason,
            event.get("ended_at") or event.get("at"),
            message=event.get("message"),
            of_generation=event.get("generation"),
        )
    elif kind == "egress.refused":
        refusals.apply(connection, event)
    elif kind in ("sandbox.reclaimed", "sandbox.frozen", "sandbox.thawed"):
        store.change(connection, str(sandbox_id), kind)
    else:
        log.info("event passed over", kind=kind, sandbox=sandbox_id)
