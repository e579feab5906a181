"""Rows of pools. A change leaves an event; it is of no project."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from bellglass.model import Pool
from bellglass.server.db.tables import pools
from bellglass.server.events import store as events

NO_PROJECT = ""


def all_of_them(connection: Connection) -> list[Pool]:
    """In the order of their names."""
    return [Pool(**row._mapping) for row in connection.execute(select(pools).order_by(pools.c.template))]


def put(connection: Connection, pool: Pool) -> Pool:
    """A new row, or another content of the one that is there; `created_at` stays."""
    values = _values(pool)
    held = connection.execute(select(pools.c.created_at).where(pools.c.template == pool.template)).first()
    if held is None:
        connection.execute(insert(pools).values(**values))
    else:
        pool = replace(pool, created_at=held.created_at)
        connection.execute(update(pools).where(pools.c.template == pool.template).values(**_values(pool)))
    events.add(connection, "pool.set", NO_PROJECT, None, {"template": pool.template, "size": pool.size})
    return pool


def remove(connection: Connection, template: str) -> bool:
    """Whether there was one."""
    if not connection.execute(delete(pools).where(pools.c.template == template)).rowcount:
        return False
    events.add(connection, "pool.deleted", NO_PROJECT, None, {"template": template})
    return True


def _values(pool: Pool) -> dict[str, Any]:
    values = pool.to_json()
    del values["status"]
    return values
