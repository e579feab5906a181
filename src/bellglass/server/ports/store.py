"""Rows of published ports and of the single-use tokens that were spent."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from bellglass.model import now
from bellglass.server.db.tables import api_keys, sandboxes
from bellglass.server.db.tables import published_ports as ports
from bellglass.server.db.tables import spent_port_tokens as spent
from bellglass.server.events import store as events
from bellglass.server.ports.tokens import Pass

TAKEN_AWAY = ""
"""In place of a key: the row keeps a port from being published by its next visit."""


class Publication(NamedTuple):
    """A published port with as much of its sandbox as a visit needs. `key` signs its tokens and is told to nobody."""

    sandbox_id: str
    port: int
    project_id: str
    visibility: str
    host_header: str | None
    frame_ancestors: list[str] | None
    http2: bool
    tls: bool
    address: str | None
    key: str
    created_at: str
    updated_at: str
    expires_at: str | None
    state: str
    termination_reason: str | None
    ended_at: str | None
    generation: int
    node_id: str | None
    is_new: bool = False
    """It is to be stored when something has answered."""


# Built once: building a statement costs more than running it.
_SELECT = (
    select(
        *ports.c,
        sandboxes.c.state,
        sandboxes.c.termination_reason,
        sandboxes.c.ended_at,
        sandboxes.c.generation,
        sandboxes.c.node_id,
    )
    .join(sandboxes, sandboxes.c.id == ports.c.sandbox_id)
    .where(sandboxes.c.deleted_at.is_(None))
)
_FIND = _SELECT.where(ports.c.sandbox_id == bindparam("sandbox"), ports.c.port == bindparam("port"))
_AUTO = select(
    sandboxes.c.project_id,
    sandboxes.c.auto_publish,
    sandboxes.c.auto_publish_host,
    sandboxes.c.auto_publish_tls,
    sandboxes.c.state,
    sandboxes.c.termination_reason,
    sandboxes.c.ended_at,
    sandboxes.c.generation,
    sandboxes.c.node_id,
).where(sandboxes.c.id == bindparam("sandbox"), sandboxes.c.deleted_at.is_(None), sandboxes.c.auto_publish.is_not(None))
_AT_ADDRESS = _SELECT.where(ports.c.address == bindparam("address"))
_KEY_HOLDS = select(api_keys.c.id).where(api_keys.c.id == bindparam("key"), api_keys.c.revoked_at.is_(None))
_OF_SANDBOX = _SELECT.where(ports.c.sandbox_id == bindparam("sandbox")).order_by(ports.c.port)


def find(connection: Connection, sandbox_id: str, port: int) -> Publication | None:
    row = connection.execute(_FIND, {"sandbox": sandbox_id, "port": port}).first()
    return Publication(**row._mapping) if row is not None else None


def key_holds(connection: Connection, key_id: str) -> bool:
    """Whether an API key is known and not revoked."""
    return connection.execute(_KEY_HOLDS, {"key": key_id}).first() is not None


def at_address(connection: Connection, address: str) -> Publication | None:
    row = connection.execute(_AT_ADDRESS, {"address": address}).first()
    return Publication(**row._mapping) if row is not None else None


def of_sandbox(connection: Connection, sandbox_id: str) -> list[Publication]:
    return [Publication(**row._mapping) for row in connection.execute(_OF_SANDBOX, {"sandbox": sandbox_id})]


def with_addresses(connection: Connection) -> list[Publication]:
    return [Publication(**row._mapping) for row in connection.execute(_SELECT.where(ports.c.address.is_not(None)))]


def count(connection: Connection, sandbox_id: str) -> int:
    """Without those that are only kept from coming back."""
    query = select(func.count()).select_from(ports).where(ports.c.sandbox_id == sandbox_id, ports.c.key != TAKEN_AWAY)
    return int(connection.execute(query).scalar_one())


def put(connection: Connection, project_id: str, sandbox_id: str, port: int, values: dict[str, Any]) -> None:
    """Add the row, or set these columns of it."""
    which = (ports.c.sandbox_id == sandbox_id, ports.c.port == port)
    if connection.execute(update(ports).where(*which).values(**values)).rowcount == 0:
        connection.execute(insert(ports).values(sandbox_id=sandbox_id, port=port, project_id=project_id, **values))
    told = {"port": port, "visibility": values["visibility"]}
    events.add(connection, "port.published", project_id, sandbox_id, told)


def set_key(connection: Connection, publication: Publication, key: str) -> None:
    which = (ports.c.sandbox_id == publication.sandbox_id, ports.c.port == publication.port)
    connection.execute(update(ports).where(*which).values(key=key))
    connection.execute(
        delete(spent).where(spent.c.sandbox_id == publication.sandbox_id, spent.c.port == publication.port)
    )
    told = {"port": publication.port}
    events.add(connection, "port.tokens_revoked", publication.project_id, publication.sandbox_id, told)


def auto(connection: Connection, sandbox_id: str) -> Row[*tuple[Any, ...]] | None:
    """Of a sandbox whose ports are published at their first visit: how they are, and the part of a Publication that
    is the sandbox's."""
    return connection.execute(_AUTO, {"sandbox": sandbox_id}).first()


def remove(connection: Connection, project_id: str, sandbox_id: str, port: int) -> bool:
    which = (ports.c.sandbox_id == sandbox_id, ports.c.port == port)
    held = connection.execute(delete(ports).where(*which)).rowcount
    if auto(connection, sandbox_id) is not None:
        # What was taken away does not come back with the next visit.
        at = now()
        values = {
            "visibility": "private",
            "http2": False,
            "tls": False,
            "key": TAKEN_AWAY,
            "created_at": at,
            "updated_at": at,
        }
        of = {"sandbox_id": sandbox_id, "port": port, "project_id": project_id}
        connection.execute(insert(ports).values(**of, **values, expires_at=at))
    if held == 0:
        return False
    events.add(connection, "port.unpublished", project_id, sandbox_id, {"port": port})
    return True


def spend(connection: Connection, publication: Publication, used: Pass, now_unix: float) -> bool:
    """Whether this is the first use of a token, which is then written down."""
    if (held := find(connection, publication.sandbox_id, publication.port)) is None or held.key != publication.key:
        return False  # revoked meanwhile
    if used.maker is None or not key_holds(connection, used.maker):
        return False  # alike
    connection.execute(delete(spent).where(spent.c.expires_at_unix < now_unix))
    which = {"sandbox_id": publication.sandbox_id, "port": publication.port, "token_id": used.id}
    if connection.execute(select(spent.c.token_id).filter_by(**which)).first() is not None:
        return False
    connection.execute(insert(spent).values(**which, expires_at_unix=used.expires_at_unix))
    return True
