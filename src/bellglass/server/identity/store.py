"""The row of a sandbox that calls."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from bellglass.server.db.tables import projects, sandboxes

_CALLER = (
    select(
        sandboxes.c.project_id,
        projects.c.name.label("project_name"),
        sandboxes.c.generation,
        sandboxes.c.state,
        sandboxes.c.identity,
    )
    .join(projects, projects.c.id == sandboxes.c.project_id)
    .where(sandboxes.c.id == bindparam("id"), sandboxes.c.deleted_at.is_(None))
)


def caller(connection: Connection, sandbox_id: str) -> Row[*tuple[Any, ...]] | None:
    return connection.execute(_CALLER, {"id": sandbox_id}).first()
