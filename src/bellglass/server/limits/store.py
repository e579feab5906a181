"""Rows of projects' own limits, and what is counted against them."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from bellglass.errors import LimitExceeded
from bellglass.model import Limit, ProjectLimits
from bellglass.server.db.tables import LIVE_ROWS, project_limits, projects, sandboxes
from bellglass.server.events import store as events

_OWN = select(project_limits.c.sandboxes).where(project_limits.c.project_id == bindparam("project"))
USED = select(func.count()).select_from(sandboxes).where(sandboxes.c.project_id == bindparam("project"), LIVE_ROWS)
# Built once, and one query: a create asks twice.
_BOTH = select(_OWN.scalar_subquery().label("own"), USED.scalar_subquery().label("used"))


def check_room(connection: Connection, project_id: str, default: int) -> None:
    """In the transaction that adds a sandbox: nobody else writes meanwhile. Raises LimitExceeded."""
    limit = _sandboxes(connection, project_id, default)
    if limit.used >= limit.most:
        raise LimitExceeded(
            f"sandboxes: the project has {limit.used}, and its limit is {limit.most}",
            hint="delete one, or ask the operator for more: `bellglass limits set`",
            details={"limit": "sandboxes", "most": limit.most, "used": limit.used},
        )


def find(connection: Connection, project: str, default: int) -> ProjectLimits | None:
    """Of a project by its id or name."""
    query = select(projects.c.id, projects.c.name).where((projects.c.id == project) | (projects.c.name == project))
    # A name may look like another project's id: ids go first.
    row = connection.execute(query.order_by(projects.c.id != project)).first()
    if row is None:
        return None
    return ProjectLimits(project_id=row.id, project_name=row.name, sandboxes=_sandboxes(connection, row.id, default))


def put(connection: Connection, project_id: str, sandboxes: int | None) -> None:
    """`None`: the setting's from now on."""
    connection.execute(delete(project_limits).where(project_limits.c.project_id == project_id))
    if sandboxes is not None:
        connection.execute(insert(project_limits).values(project_id=project_id, sandboxes=sandboxes))
    events.add(connection, "project.limits", project_id, None, {"sandboxes": sandboxes})


def _sandboxes(connection: Connection, project_id: str, default: int) -> Limit:
    own, used = connection.execute(_BOTH, {"project": project_id}).one()
    return Limit(most=default if own is None else own, used=used, own=own is not None)
