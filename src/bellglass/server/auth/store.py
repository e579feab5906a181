"""Rows of projects and keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from bellglass.server.db.tables import api_keys, projects

KEY_COLUMNS = (
    api_keys.c.id,
    api_keys.c.project_id,
    projects.c.name.label("project_name"),
    api_keys.c.label,
    api_keys.c.created_at,
    api_keys.c.last_used_at,
    api_keys.c.revoked_at,
)


_ACTIVE = (
    select(*KEY_COLUMNS, api_keys.c.secret_sha256)
    .join(projects, projects.c.id == api_keys.c.project_id)
    .where(api_keys.c.revoked_at.is_(None))
)
_ACTIVE_KEY = _ACTIVE.where(api_keys.c.secret_sha256 == bindparam("digest"))
_ACTIVE_KEY_OF_ID = _ACTIVE.where(api_keys.c.id == bindparam("id"))


def active_key(connection: Connection, digest: str) -> Row[*tuple[Any, ...]] | None:
    """The key with this SHA-256 that is not revoked."""
    return connection.execute(_ACTIVE_KEY, {"digest": digest}).first()


def active_key_of_id(connection: Connection, key_id: str) -> Row[*tuple[Any, ...]] | None:
    """The key with this id, if it is not revoked."""
    return connection.execute(_ACTIVE_KEY_OF_ID, {"id": key_id}).first()


def touch_keys(connection: Connection, key_ids: list[str], at: str) -> None:
    connection.execute(update(api_keys).where(api_keys.c.id.in_(key_ids)).values(last_used_at=at))
