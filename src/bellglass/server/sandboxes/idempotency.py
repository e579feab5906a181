"""Idempotency-Key on creates: the same key and body give the same answer, another body is a conflict.

A key is claimed in the transaction that inserts the sandbox's row, and gets its answer in the one that settles it. An
answer that a retry could better (no capacity, the node down) releases the key.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from bellglass.errors import IdempotencyConflict, InvalidRequest
from bellglass.model import Record, now
from bellglass.server.db.tables import idempotency_keys as table
from bellglass.server.http.validation import shown

MAX_KEY = 255
ADDED_LATER: tuple[tuple[str, Any], ...] = (
    ("identity", True),
    ("auto_publish", None),
    ("auto_publish_host", None),
    ("auto_publish_tls", []),
)
"""Fields that the first release's creates did not have, with the value that means the same: a key that was claimed
before an upgrade still holds after it."""
# Built once, with parameters, which must not be called like columns: building takes longer than executing.
_OF_KEY = (table.c.project_id == bindparam("of_project"), table.c.key == bindparam("of_key"))
_FIND = select(table.c.body_sha256, table.c.sandbox_id, table.c.status, table.c.response).where(*_OF_KEY)
_CLAIM = insert(table)
_FINISH = update(table).where(*_OF_KEY).values(status=bindparam("to_status"), response=bindparam("to_response"))


class Held(NamedTuple):
    """`status` and `response` are None while the first request is under way."""

    body_sha256: str
    sandbox_id: str
    status: int | None
    response: dict[str, Any] | None


def check_key(key: str | None) -> str | None:
    if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise InvalidRequest(
            f"Idempotency-Key: {shown(key)} is not a key",
            hint=f"1 to {MAX_KEY} printable ASCII characters",
            details={"field": "Idempotency-Key"},
        )
    return key


def digest(body: Record) -> str:
    """Of what was meant, not of how it was written: key order and spaces don't count."""
    meant = {name: value for name, value in body.to_json().items() if (name, value) not in ADDED_LATER}
    return hashlib.sha256(json.dumps(meant, sort_keys=True).encode()).hexdigest()


def check_same(key: str, held_sha256: str, body_sha256: str) -> None:
    if held_sha256 != body_sha256:
        raise IdempotencyConflict(
            f"Idempotency-Key {shown(key)} was used with another body",
            hint="take a new key for another request",
            details={"key": key},
        )


def find(connection: Connection, project_id: str, key: str) -> Held | None:
    row = connection.execute(_FIND, {"of_project": project_id, "of_key": key}).first()
    if row is None:
        return None
    return Held(row.body_sha256, row.sandbox_id, row.status, json.loads(row.response) if row.response else None)


def claim(connection: Connection, project_id: str, key: str, body_sha256: str, sandbox_id: str) -> None:
    row = {"project_id": project_id, "key": key, "body_sha256": body_sha256, "sandbox_id": sandbox_id}
    connection.execute(_CLAIM, row | {"created_at": now()})


def finish(connection: Connection, project_id: str, key: str, status: int, response: dict[str, Any]) -> None:
    given = {"of_project": project_id, "of_key": key, "to_status": status, "to_response": json.dumps(response)}
    connection.execute(_FINISH, given)


def forget_before(connection: Connection, moment: str) -> int:
    return connection.execute(delete(table).where(table.c.created_at < moment)).rowcount
