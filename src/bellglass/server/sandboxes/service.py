"""Reading and changing sandboxes. Creating and deleting have modules of their own."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from sqlalchemy import Connection

from bellglass import faultpoints
from bellglass.errors import InvalidRequest
from bellglass.model import Sandbox, State, UpdateSandbox
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.http.validation import did_you_mean, shown
from bellglass.server.sandboxes import guard, store
from bellglass.server.sandboxes.validate import check_labels, end_time, lifetime
from bellglass.wire import untrusted


class Sandboxes:
    def __init__(self, reader: Reader, writer: Writer, cluster: ClusterEngine) -> None:
        self._reader = reader
        self._writer = writer
        self._cluster = cluster

    def get(self, project_id: str, sandbox_id: str) -> Sandbox:
        found = self._reader.inline(store.find, project_id, sandbox_id)
        if found is None:
            raise guard.not_found()
        return found

    async def list(
        self, project_id: str, filters: store.Filters, limit: int, cursor: str | None
    ) -> tuple[list[Sandbox], str | None]:
        """A page, newest first, and the cursor of the next one."""
        after = None if cursor is None else decode_cursor(cursor)
        rows = await self._reader.in_thread(store.page, project_id, filters, limit + 1, after)
        more = len(rows) > limit
        rows = rows[:limit]
        return rows, encode_cursor(rows[-1].created_at, rows[-1].id) if more else None

    async def update(
        self, project_id: str, sandbox_id: str, body: UpdateSandbox, given: frozenset[str], request_id: str | None
    ) -> Sandbox:
        """Labels are replaced as a whole; `idle_timeout: null` takes it away. Raises what `guard.running` raises, and
        InvalidRequest."""
        values: dict[str, Any] = {}
        clocks = _clocks(body)
        if body.labels is not None:
            check_labels(body.labels)
            values["labels"] = body.labels
        if "lifetime_s" in clocks:
            values["lifetime_s"] = clocks["lifetime_s"]
        if "idle_timeout" in given:
            values["idle_timeout_s"] = (
                None if body.idle_timeout is None else lifetime(body.idle_timeout, "idle_timeout")
            )
        target = guard.running(self._reader, project_id, sandbox_id)
        if clocks or "idle_timeout_s" in values:
            result = await self._cluster.call(
                target.node_id,
                "sandbox.update",
                {
                    **target.ref,
                    "lifetime_s": None,
                    **clocks,
                    "idle_timeout_s": values.get("idle_timeout_s"),
                    "clear_idle": "idle_timeout_s" in values and values["idle_timeout_s"] is None,
                },
                request_id=request_id,
            )
            values["expires_at"] = result["expires_at"]
            faultpoints.reach("server.update.node_answered")

        def write(connection: Connection) -> Sandbox | None:
            if values:
                store.change(connection, sandbox_id, "sandbox.updated", **values)
            if body.labels is not None:
                store.set_labels(connection, sandbox_id, body.labels)
            return store.find(connection, project_id, sandbox_id)

        found = await self._writer.run(write)
        faultpoints.reach("server.update.row_changed")
        if found is None:
            raise guard.not_found()
        return found


def _clocks(body: UpdateSandbox) -> dict[str, float]:
    """When it is to end, for the node; nothing where that is to stay as it is."""
    given = [name for name in ("lifetime", "keep_for", "expires_at") if getattr(body, name) is not None]
    if len(given) > 1:
        raise InvalidRequest(
            f"{given[1]}: it excludes {given[0]}", hint="leave one of them out", details={"field": given[1]}
        )
    if body.lifetime is not None:
        return {"lifetime_s": lifetime(body.lifetime, "lifetime")}
    if body.keep_for is not None:
        return {"keep_for_s": lifetime(body.keep_for, "keep_for")}
    if body.expires_at is not None:
        return {"expires_at_unix": end_time(body.expires_at, "expires_at")}
    return {}


def filters_of(state: str | None, owner: str | None, name: str | None, labels: list[str]) -> store.Filters:
    """Query parameters as filters. Without `state`: what has not ended."""
    states: tuple[str, ...] = store.LIVE
    if state is not None and state != "all":
        known = [*State, "all"]
        if state not in known:
            raise InvalidRequest(
                f"state: {shown(state)} is not a state",
                hint=did_you_mean(state, known) or f"one of: {', '.join(known)}",
                details={"field": "state"},
            )
        states = (state,)
    elif state == "all":
        states = ()
    return store.Filters(states, owner, name, labels_of(labels))


def labels_of(labels: list[str]) -> tuple[tuple[str, str], ...]:
    """KEY=VALUE as pairs."""
    pairs = []
    for text in labels:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest(
                f"label: {shown(text)} is not KEY=VALUE", hint="label=team=red", details={"field": "label"}
            )
        pairs.append((key, value))
    return tuple(pairs)


def encode_cursor(created_at: str, sandbox_id: str) -> str:
    raw = json.dumps([created_at, sandbox_id], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_cursor(cursor: str) -> tuple[str, str]:
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        created_at, sandbox_id = untrusted.parse(raw)
        if not (isinstance(created_at, str) and isinstance(sandbox_id, str)):
            raise ValueError("not two strings")
    except (binascii.Error, ValueError, TypeError):
        raise InvalidRequest(
            f"cursor: {shown(cursor)} was not given by a list",
            hint="take `cursor` of the page before, or leave it out",
            details={"field": "cursor"},
        ) from None
    return created_at, sandbox_id
