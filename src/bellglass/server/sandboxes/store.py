"""Rows of sandboxes. Every change of state goes through here and leaves an event.

A row that its owner deleted has `deleted_at` and is invisible; one that ended by itself stays readable.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, Update, and_, bindparam, delete, insert, or_, select, tuple_, update

from bellglass.ids import SANDBOX_ID
from bellglass.model import Sandbox, State, now, read_network
from bellglass.server.db.tables import NAMED_ROWS, idempotency_keys, sandbox_labels, sandboxes
from bellglass.server.events import store as events

LIVE = (State.CREATING, State.RUNNING, State.STOPPING)
_SHOWN = tuple(
    sandboxes.c[column.name]
    for column in sandboxes.columns
    if column.name not in ("project_id", "template_env", "node_id", "deleted_at")
)
_SELECT = select(*_SHOWN, sandboxes.c.node_id.label("node"))
# Built once, with parameters: building a statement costs more than running it.
_OF_PROJECT = and_(sandboxes.c.id == bindparam("id"), sandboxes.c.project_id == bindparam("project"))
_ACCESS = select(
    sandboxes.c.id,
    sandboxes.c.state,
    sandboxes.c.generation,
    sandboxes.c.node_id,
    sandboxes.c.user,
    sandboxes.c.workdir,
    sandboxes.c.env,
    sandboxes.c.template_env,
    sandboxes.c.termination_reason,
    sandboxes.c.ended_at,
    sandboxes.c.deleted_at,
).where(_OF_PROJECT)
_FIND = _SELECT.where(_OF_PROJECT, sandboxes.c.deleted_at.is_(None))
_KNOWN = select(sandboxes.c.id).where(sandboxes.c.id == bindparam("id"))
_ADD = insert(sandboxes)

FIND_LIVE_NAME = _SELECT.where(
    sandboxes.c.project_id == bindparam("project"), sandboxes.c.name == bindparam("name"), NAMED_ROWS
)


class Filters(NamedTuple):
    """`states` empty: any. `labels`: all of them must fit. `created_since` is one of our times, itself included."""

    states: tuple[str, ...]
    owner: str | None
    name: str | None
    labels: tuple[tuple[str, str], ...]
    template: str | None = None
    created_since: str | None = None
    oldest_first: bool = False


def to_record(row: Row[*tuple[Any, ...]]) -> Sandbox:
    return Sandbox(**{**row._mapping, "network": read_network(row.network)})


def find(connection: Connection, project_id: str, sandbox_id: str) -> Sandbox | None:
    """One that can be seen: of this project, not deleted by its owner."""
    if not SANDBOX_ID.fullmatch(sandbox_id):
        return None
    row = connection.execute(_FIND, {"id": sandbox_id, "project": project_id}).first()
    return to_record(row) if row is not None else None


def access(connection: Connection, project_id: str, sandbox_id: str) -> Row[*tuple[Any, ...]] | None:
    """What an operation inside a sandbox needs to know of it, deleted ones included."""
    if not SANDBOX_ID.fullmatch(sandbox_id):
        return None
    return connection.execute(_ACCESS, {"id": sandbox_id, "project": project_id}).first()


def is_known(connection: Connection, sandbox_id: str) -> bool:
    """Whether any row has this id, of whatever project and state."""
    return connection.execute(_KNOWN, {"id": sandbox_id}).first() is not None


def find_live_name(connection: Connection, project_id: str, name: str) -> Sandbox | None:
    row = connection.execute(FIND_LIVE_NAME, {"project": project_id, "name": name}).first()
    return to_record(row) if row is not None else None


def page(
    connection: Connection, project_id: str, filters: Filters, limit: int, after: tuple[str, str] | None
) -> list[Sandbox]:
    """Newest first unless told. `after` is (created_at, id) of the last one seen, so new rows never shift a page."""
    query: Select[Any] = _SELECT.where(sandboxes.c.project_id == project_id, sandboxes.c.deleted_at.is_(None))
    if filters.states:
        query = query.where(sandboxes.c.state.in_(filters.states))
    if filters.owner is not None:
        query = query.where(sandboxes.c.owner == filters.owner)
    if filters.name is not None:
        query = query.where(sandboxes.c.name == filters.name)
    for key, value in filters.labels:
        fits = select(sandbox_labels.c.sandbox_id).where(sandbox_labels.c.key == key, sandbox_labels.c.value == value)
        query = query.where(sandboxes.c.id.in_(fits))
    if filters.template is not None:
        query = query.where(sandboxes.c.template == filters.template)
    if filters.created_since is not None:
        query = query.where(sandboxes.c.created_at >= filters.created_since)
    place = tuple_(sandboxes.c.created_at, sandboxes.c.id)
    if after is not None:
        query = query.where(place > after if filters.oldest_first else place < after)
    order = (sandboxes.c.created_at, sandboxes.c.id)
    query = query.order_by(*(order if filters.oldest_first else [column.desc() for column in order])).limit(limit)
    return [to_record(row) for row in connection.execute(query)]


def add(connection: Connection, project_id: str, sandbox: Sandbox, template_env: dict[str, str]) -> None:
    """A new row; IntegrityError if a live one has its name."""
    values = sandbox.to_json()
    values["node_id"] = values.pop("node")
    connection.execute(_ADD, {**values, "project_id": project_id, "template_env": template_env})
    _add_labels(connection, sandbox.id, sandbox.labels)
    events.add(connection, "sandbox.creating", project_id, sandbox.id, _for_the_bill(sandbox))


def _for_the_bill(sandbox: Sandbox) -> dict[str, Any]:
    """What an event says of a sandbox: events outlive its row, so it is all that a bill can go by."""
    limits = {name: getattr(sandbox, name) for name in ("cpus", "memory_bytes", "disk_bytes", "pids")}
    told = {"template": sandbox.template, "limits": limits}
    return told if sandbox.owner is None else told | {"owner": sandbox.owner}


def set_labels(connection: Connection, sandbox_id: str, labels: dict[str, str]) -> None:
    connection.execute(delete(sandbox_labels).where(sandbox_labels.c.sandbox_id == sandbox_id))
    _add_labels(connection, sandbox_id, labels)


def _add_labels(connection: Connection, sandbox_id: str, labels: dict[str, str]) -> None:
    if labels:
        rows = [{"sandbox_id": sandbox_id, "key": key, "value": value} for key, value in labels.items()]
        connection.execute(insert(sandbox_labels), rows)


def change(
    connection: Connection,
    sandbox_id: str,
    kind: str | None,
    *,
    from_states: tuple[str, ...] = (),
    of_generation: int | None = None,
    **values: Any,
) -> bool:
    """Set columns of one row if it is in one of `from_states`; False if it isn't. `kind` names the event."""
    query = _change(tuple(values), from_states, of_generation is not None)
    given = {f"set_{name}": value for name, value in values.items()}
    row = connection.execute(query, given | {"of_id": sandbox_id, "of_generation": of_generation}).first()
    if row is None:
        return False
    if kind is not None:
        told = {name: values[name] for name in ("termination_reason", "message", "runtime") if values.get(name)}
        events.add(connection, kind, row.project_id, sandbox_id, told)
    return True


@cache
def _change(columns: tuple[str, ...], from_states: tuple[str, ...], of_generation: bool) -> Update:
    """Each made once, of a handful. A parameter called like a column would be a value to set."""
    query = update(sandboxes).where(sandboxes.c.id == bindparam("of_id"))
    if of_generation:
        query = query.where(sandboxes.c.generation == bindparam("of_generation"))
    if from_states:
        query = query.where(or_(*(sandboxes.c.state == state for state in from_states)))
    values: dict[str, Any] = {name: bindparam(f"set_{name}", type_=sandboxes.c[name].type) for name in columns}
    # Without values it is only asked whether the row is there, for the event.
    return query.values(values or {"generation": sandboxes.c.generation}).returning(sandboxes.c.project_id)


def end(
    connection: Connection,
    sandbox_id: str,
    reason: str,
    ended_at: str | None,
    *,
    message: str | None = None,
    of_generation: int | None = None,
) -> bool:
    """A live row becomes `ended`. One that its owner is deleting disappears with it."""
    ended_at = ended_at or now()
    values: dict[str, Any] = {"state": State.ENDED, "termination_reason": reason, "ended_at": ended_at}
    if message is not None:
        values["message"] = message
    if reason == "user":
        values["deleted_at"] = ended_at
    return change(connection, sandbox_id, "sandbox.ended", from_states=LIVE, of_generation=of_generation, **values)


def set_clock(connection: Connection, sandbox_id: str, before: str | None, expires_at: str | None) -> None:
    """Of a running one, unless somebody else has changed it meanwhile."""
    row = connection.execute(select(sandboxes.c.expires_at).where(sandboxes.c.id == sandbox_id)).first()
    if row is not None and row.expires_at == before:
        change(connection, sandbox_id, "sandbox.updated", from_states=(State.RUNNING,), expires_at=expires_at)


def remove(connection: Connection, sandbox_id: str) -> None:
    """Without a trace: a create that never came to be."""
    connection.execute(delete(idempotency_keys).where(idempotency_keys.c.sandbox_id == sandbox_id))
    row = connection.execute(
        delete(sandboxes).where(sandboxes.c.id == sandbox_id).returning(sandboxes.c.project_id)
    ).first()
    if row is not None:
        events.add(connection, "sandbox.undone", row.project_id, sandbox_id, {})


def in_states(connection: Connection, *states: str) -> list[Row[Any]]:
    """(id, generation, state, node_id, created_at, expires_at, network_generation) of every row in these states."""
    query = select(
        sandboxes.c.id,
        sandboxes.c.generation,
        sandboxes.c.state,
        sandboxes.c.node_id,
        sandboxes.c.created_at,
        sandboxes.c.expires_at,
        sandboxes.c.network_generation,
    ).where(sandboxes.c.state.in_(states))
    return list(connection.execute(query))


def counts(connection: Connection) -> dict[str, int]:
    """Live rows by state, over all projects."""
    from sqlalchemy import func

    query = select(sandboxes.c.state, func.count()).where(sandboxes.c.state.in_(LIVE)).group_by(sandboxes.c.state)
    return {state: count for state, count in connection.execute(query)}


def forget_ended_before(connection: Connection, moment: str) -> int:
    """Rows of sandboxes that ended before then."""
    query = delete(sandboxes).where(sandboxes.c.state.in_((State.ENDED, State.FAILED)), sandboxes.c.ended_at < moment)
    return connection.execute(query).rowcount
