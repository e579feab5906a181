"""The network in a sandbox's row. Each change counts its generation up, so that a late one can't undo it."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, select, update

from bellglass.model import Network, Record, State, read_network
from bellglass.server.db.tables import sandboxes
from bellglass.server.events import store as events

_FIND = select(sandboxes.c.network, sandboxes.c.network_generation).where(sandboxes.c.id == bindparam("sandbox"))


class Stored(NamedTuple):
    network: Network
    generation: int


def find(connection: Connection, sandbox_id: str) -> Stored | None:
    row = connection.execute(_FIND, {"sandbox": sandbox_id}).first()
    return Stored(read_network(row.network), row.network_generation) if row is not None else None


def replace(connection: Connection, sandbox_id: str, network: Network) -> Stored | None:
    """Of a running one: the new network under the next generation. None if it does not run (any more)."""
    return _write(connection, sandbox_id, network, sandboxes.c.network_generation + 1)


def supersede(connection: Connection, sandbox_id: str, held: int, stored: Stored) -> Stored | None:
    """`stored` at `held`, the generation of what is stored now. None if that has changed since, or it does not run."""
    return _write(connection, sandbox_id, stored.network, stored.generation, sandboxes.c.network_generation == held)


def _write(
    connection: Connection, sandbox_id: str, network: Network, generation: object, *more: ColumnElement[bool]
) -> Stored | None:
    plain = network.to_json() if isinstance(network, Record) else network
    query = update(sandboxes).where(sandboxes.c.id == sandbox_id, sandboxes.c.state == State.RUNNING, *more)
    query = query.values(network=plain, network_generation=generation)
    row = connection.execute(query.returning(sandboxes.c.project_id, sandboxes.c.network_generation)).first()
    if row is None:
        return None
    told = {"network": plain, "generation": row.network_generation}
    events.add(connection, "network.changed", row.project_id, sandbox_id, told)
    return Stored(network, row.network_generation)
