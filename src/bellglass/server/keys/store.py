"""Rows of projects and keys."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select, update

from bellglass.model import ApiKey, Project
from bellglass.server.auth.store import KEY_COLUMNS
from bellglass.server.db.tables import api_keys, projects

_KEYS = select(*KEY_COLUMNS).join(projects, projects.c.id == api_keys.c.project_id)


def project_named(connection: Connection, name: str) -> Project | None:
    row = connection.execute(select(projects).where(projects.c.name == name)).first()
    return Project(**row._mapping) if row is not None else None


def project(connection: Connection, project_id: str) -> Project:
    return Project(**connection.execute(select(projects).where(projects.c.id == project_id)).one()._mapping)


def all_projects(connection: Connection) -> list[Project]:
    return [Project(**row._mapping) for row in connection.execute(select(projects).order_by(projects.c.name))]


def add_project(connection: Connection, new: Project) -> None:
    connection.execute(insert(projects).values(**new.to_json()))


def add_key(connection: Connection, new: ApiKey, digest: str) -> None:
    connection.execute(
        insert(api_keys).values(
            id=new.id, project_id=new.project_id, label=new.label, secret_sha256=digest, created_at=new.created_at
        )
    )


def key(connection: Connection, key_id: str) -> ApiKey:
    return ApiKey(**connection.execute(_KEYS.where(api_keys.c.id == key_id)).one()._mapping)


def all_keys(connection: Connection) -> list[ApiKey]:
    """Revoked ones too, oldest first."""
    rows = connection.execute(_KEYS.order_by(api_keys.c.created_at, api_keys.c.id))
    return [ApiKey(**row._mapping) for row in rows]


def revoke(connection: Connection, key_id: str, at: str) -> bool:
    """False for one that does not exist. The first time of a revocation stays."""
    done = connection.execute(
        update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=func.coalesce(api_keys.c.revoked_at, at))
    )
    return done.rowcount == 1
