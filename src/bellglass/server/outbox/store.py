"""Rows of the outbox. `kind` is `sandbox.created`, `sandbox.running`, `sandbox.ended` and the like."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from bellglass.model import now
from bellglass.server.db.tables import outbox

_ADD = insert(outbox)
"""Made once: each change of state adds a record, and making the statement takes longer than executing it."""


def add(connection: Connection, kind: str, project_id: str, sandbox_id: str | None, data: dict[str, Any]) -> None:
    record = {"at": now(), "kind": kind, "project_id": project_id, "sandbox_id": sandbox_id, "data": data}
    connection.execute(_ADD, record)


def read_after(connection: Connection, seq: int, limit: int) -> list[Row[Any]]:
    """The next records in order; `seq` of the last one is the reader's cursor."""
    return list(connection.execute(select(outbox).where(outbox.c.seq > seq).order_by(outbox.c.seq).limit(limit)))


def forget_before(connection: Connection, moment: str) -> int:
    return connection.execute(delete(outbox).where(outbox.c.at < moment)).rowcount
