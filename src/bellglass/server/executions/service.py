"""Calls for executions: one indexed read, then the link. Ids that don't fit their grammar are unknown ids."""

from __future__ import annotations

import signal as signals
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bellglass.errors import InvalidRequest, NotFound
from bellglass.ids import EXECUTION_ID
from bellglass.link import LinkStream
from bellglass.model import CreateExecution
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.db.reader import Reader
from bellglass.server.executions.validate import settle
from bellglass.server.http.validation import did_you_mean, shown
from bellglass.server.sandboxes import guard
from bellglass.server.sandboxes.guard import Target

STATES = ("running", "exited", "lost")


class Executions:
    def __init__(self, reader: Reader, cluster: ClusterEngine, keepalive_s: float) -> None:
        self._reader = reader
        self._cluster = cluster
        self._keepalive_s = keepalive_s

    async def create(
        self, project_id: str, sandbox_id: str, body: CreateExecution, accept: str, request_id: str
    ) -> tuple[str, LinkStream]:
        """The id and the stream that answers: a record if detached, else the output in the format `accept`."""
        target = guard.running(self._reader, project_id, sandbox_id)
        execution_id, params = settle(body, target, accept)
        params["keepalive_s"] = self._keepalive_s
        stream = await self._cluster.open(target.node_id, "execution.create", params, request_id=request_id)
        return execution_id, stream

    async def get(self, project_id: str, sandbox_id: str, execution_id: str, request_id: str) -> dict[str, Any]:
        target = guard.readable(self._reader, project_id, sandbox_id)
        return await self._call(target, "execution.get", execution_id, {}, request_id)

    async def list(
        self, project_id: str, sandbox_id: str, state: str | None, limit: int, cursor: str | None, request_id: str
    ) -> dict[str, Any]:
        """`{"executions": [...], "cursor"}`, newest first."""
        if state is not None and state not in STATES:
            raise InvalidRequest(
                f"state: {shown(state)} is not a state of executions",
                hint=did_you_mean(state, STATES) or f"one of: {', '.join(STATES)}",
                details={"field": "state"},
            )
        if cursor is not None and not EXECUTION_ID.fullmatch(cursor):
            raise InvalidRequest(
                f"cursor: {shown(cursor)} was not given by a list",
                hint="take `cursor` of the page before, or leave it out",
                details={"field": "cursor"},
            )
        target = guard.readable(self._reader, project_id, sandbox_id)
        params = {**target.ref, "limit": limit, "cursor": cursor, "state": state}
        return await self._cluster.call(target.node_id, "execution.list", params, request_id=request_id)

    async def output(
        self,
        project_id: str,
        sandbox_id: str,
        execution_id: str,
        accept: str,
        request_id: str,
        *,
        offset: int,
        follow: bool,
        resume: bool,
    ) -> LinkStream:
        target = guard.readable(self._reader, project_id, sandbox_id)
        params = {
            **target.ref, "execution_id": check_id(execution_id), "offset": offset, "follow": follow, "accept": accept,
            "resume": resume, "keepalive_s": self._keepalive_s,
        }  # fmt: skip
        return await self._cluster.open(target.node_id, "execution.output", params, request_id=request_id)

    async def stdin(
        self, project_id: str, sandbox_id: str, execution_id: str, request_id: str, *, offset: int | None, eof: bool
    ) -> LinkStream:
        """A stream that takes the bytes and answers `{"written", "offset"}`."""
        target = guard.running(self._reader, project_id, sandbox_id)
        params = {**target.ref, "execution_id": check_id(execution_id), "eof": eof, "offset": offset}
        return await self._cluster.open(target.node_id, "execution.stdin", params, request_id=request_id, body=True)

    async def signal(
        self, project_id: str, sandbox_id: str, execution_id: str, signal: str | int, scope: str, request_id: str
    ) -> None:
        target = guard.running(self._reader, project_id, sandbox_id)
        params = {"signal": signal_name(signal), "scope": scope}
        await self._call(target, "execution.signal", execution_id, params, request_id)

    async def _call(
        self, target: Target, op: str, execution_id: str, more: dict[str, Any], request_id: str
    ) -> dict[str, Any]:
        params = {**target.ref, "execution_id": check_id(execution_id), **more}
        with in_our_words():
            return await self._cluster.call(target.node_id, op, params, request_id=request_id)


def check_id(execution_id: str) -> str:
    if not EXECUTION_ID.fullmatch(execution_id):
        raise not_found()
    return execution_id


def not_found() -> NotFound:
    return NotFound(
        "there is no such execution in this sandbox",
        hint="GET .../executions lists them",
        details={"kind": "execution"},
    )


@contextmanager
def in_our_words() -> Iterator[None]:
    """The node's 404 becomes ours, so that a malformed id and an unknown one answer alike."""
    try:
        yield
    except NotFound as error:
        if type(error) is not NotFound:
            raise
        raise not_found() from error


def signal_name(value: str | int) -> str:
    """`SIGTERM` for "SIGTERM", "TERM", "term" or 15. Raises InvalidRequest."""
    try:
        if isinstance(value, int):
            return signals.Signals(value).name
        upper = value.upper()
        return signals.Signals[upper if upper.startswith("SIG") else f"SIG{upper}"].name
    except (ValueError, KeyError):
        names = [member.name for member in signals.Signals]
        hint = did_you_mean(str(value).upper(), names) or 'such as "SIGTERM"'
        raise InvalidRequest(
            f"signal: {shown(value)} is not a signal", hint=hint, details={"field": "signal"}
        ) from None
