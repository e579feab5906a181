"""Questions to the database about sandboxes that only the node names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, or_, select

from bellglass.model import State
from bellglass.server.db.tables import projects, sandbox_labels, sandboxes

CHUNK = 500
"""SQLite takes a bounded number of parameters."""


def known(connection: Connection, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """(id, state, deleted_at) of those that have a row."""
    found: dict[str, Row[Any]] = {}
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        query = select(sandboxes.c.id, sandboxes.c.state, sandboxes.c.deleted_at).where(sandboxes.c.id.in_(part))
        found |= {row.id: row for row in connection.execute(query)}
    return found


def project_names(connection: Connection) -> dict[str, str]:
    return {row.id: row.name for row in connection.execute(select(projects.c.id, projects.c.name))}


def project(connection: Connection, wanted: str) -> str | None:
    """The id of a project, by id or name."""
    query = select(projects.c.id).where(or_(projects.c.id == wanted, projects.c.name == wanted))
    row = connection.execute(query).first()
    return str(row.id) if row is not None else None


def name_is_taken(connection: Connection, project_id: str, name: str) -> bool:
    query = select(sandboxes.c.id).where(
        sandboxes.c.project_id == project_id,
        sandboxes.c.name == name,
        sandboxes.c.state.in_((State.CREATING, State.RUNNING)),
    )
    return connection.execute(query).first() is not None


def forget(connection: Connection, sandbox_id: str) -> None:
    """A row that says it has ended, of one that has not."""
    connection.execute(delete(sandbox_labels).where(sandbox_labels.c.sandbox_id == sandbox_id))
    connection.execute(delete(sandboxes).where(sandboxes.c.id == sandbox_id))
