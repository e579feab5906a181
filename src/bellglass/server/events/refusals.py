"""Refusals out of the node's journal as events of the sandbox's project."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, select

from bellglass.server.db.tables import sandboxes
from bellglass.server.events import store

FAILURES = frozenset({"lookup_failed", "connect_failed"})
"""Reasons that refuse nothing: it was allowed, and could not be reached."""
_DATA = ("protocol", "host", "address", "port", "reason", "rule", "count")
_PROJECT = select(sandboxes.c.project_id).where(sandboxes.c.id == bindparam("id"))


def apply(connection: Connection, event: dict[str, Any]) -> None:
    """One batch of a sandbox, in the transaction that moves the journal's cursor past it. Of one that no row knows it
    is passed over."""
    sandbox_id = str(event.get("sandbox_id"))
    row = connection.execute(_PROJECT, {"id": sandbox_id}).first()
    if row is None:
        return
    head = {"project_id": row.project_id, "sandbox_id": sandbox_id}
    records = [
        {
            "at": refusal.get("at") or event.get("at"),
            "type": "egress.failed" if refusal.get("reason") in FAILURES else "egress.refused",
            "data": {name: refusal.get(name) for name in _DATA},
            **head,
        }
        for refusal in event.get("refusals", ())
    ]
    if left_out := event.get("left_out"):
        records.append({"at": event.get("at"), "type": "egress.suppressed", "data": {"count": left_out}, **head})
    store.add_all(connection, records)
