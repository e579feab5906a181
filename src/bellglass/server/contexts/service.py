"""Calls for contexts: one indexed read, then the link."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from typing import Any

from bellglass import faultpoints
from bellglass.errors import InvalidRequest, NotAcceptable, NotFound
from bellglass.ids import CONTEXT_ID, EXECUTION_ID, encode_base32, new_context_id, new_ulid
from bellglass.link import LinkStream
from bellglass.model import (
    DEFAULT_RUN_TIMEOUT_S,
    LANGUAGES,
    MAX_CODE_BYTES,
    MAX_RUN_TIMEOUT_S,
    CreateContext,
    RunCode,
)
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.db.reader import Reader
from bellglass.server.executions.validate import choose_format, settle_cwd
from bellglass.server.http.validation import did_you_mean, refuse, shown
from bellglass.server.sandboxes import guard
from bellglass.server.sandboxes.guard import Target
from bellglass.server.sandboxes.validate import check_env
from bellglass.units import format_size, parse_duration

_MEANT = {"py": "python", "python3": "python", "js": "javascript", "node": "javascript", "sh": "bash", "shell": "bash"}


class Contexts:
    def __init__(self, reader: Reader, cluster: ClusterEngine, keepalive_s: float) -> None:
        self._reader = reader
        self._cluster = cluster
        self._keepalive_s = keepalive_s

    async def create(
        self, project_id: str, sandbox_id: str, body: CreateContext, key: str | None, request_id: str
    ) -> dict[str, Any]:
        """The record, once its kernel is ready. The same idempotency `key` is the same context."""
        target = guard.running(self._reader, project_id, sandbox_id)
        language = check_language(body.language)
        params = {
            **_around(target),
            "context_id": new_context_id() if key is None else _id_of(sandbox_id, key),
            "language": language,
            "cwd": settle_cwd(body.cwd, target.workdir),
        }
        made = await self._cluster.call(target.node_id, "context.create", params, request_id=request_id)
        faultpoints.reach("server.context.made")
        return made

    async def list(self, project_id: str, sandbox_id: str, request_id: str) -> list[dict[str, Any]]:
        """Records, oldest first."""
        target = guard.running(self._reader, project_id, sandbox_id)
        found = await self._cluster.call(target.node_id, "context.list", target.ref, request_id=request_id)
        contexts: list[dict[str, Any]] = found["contexts"]
        return contexts

    async def delete(self, project_id: str, sandbox_id: str, context_id: str, request_id: str) -> None:
        await self._call("context.delete", project_id, sandbox_id, context_id, request_id)

    async def interrupt(self, project_id: str, sandbox_id: str, context_id: str, request_id: str) -> bool:
        """Whether there was a run to be interrupted."""
        answer = await self._call("context.interrupt", project_id, sandbox_id, context_id, request_id)
        return bool(answer["interrupted"])

    async def restart(self, project_id: str, sandbox_id: str, context_id: str, request_id: str) -> dict[str, Any]:
        """The record, once the fresh kernel is ready."""
        return await self._call("context.restart", project_id, sandbox_id, context_id, request_id)

    async def run(
        self, project_id: str, sandbox_id: str, context_id: str, body: RunCode, accept: str, request_id: str
    ) -> tuple[str, LinkStream]:
        """The run's id and the stream that answers, in the format `accept` (`json` or `ndjson`)."""
        target = guard.running(self._reader, project_id, sandbox_id)
        check_env(body.env)
        if (size := len(body.code.encode())) > MAX_CODE_BYTES:
            raise InvalidRequest(
                f"code: {size} bytes are over the limit of {format_size(MAX_CODE_BYTES)}",
                hint="write it to a file in the sandbox and run that",
                details={"field": "code"},
            )
        if body.id is not None and not EXECUTION_ID.fullmatch(body.id):
            raise refuse("id", body.id, "is not a ULID", "leave it out to get one")
        if body.after is not None and body.after < 0:
            raise refuse("after", body.after, "is not an offset")
        run_id = body.id or new_ulid()
        params = {
            **_around(target), "context_id": check_id(context_id), "run_id": run_id, "code": body.code,
            "run_env": body.env, "timeout_s": _timeout(body.timeout), "accept": accept, "after": body.after,
            "keepalive_s": self._keepalive_s,
        }  # fmt: skip
        stream = await self._cluster.open(target.node_id, "context.run", params, request_id=request_id)
        faultpoints.reach("server.context.run_opened")
        return run_id, stream

    async def _call(
        self, op: str, project_id: str, sandbox_id: str, context_id: str, request_id: str
    ) -> dict[str, Any]:
        target = guard.running(self._reader, project_id, sandbox_id)
        params = {**_around(target), "context_id": check_id(context_id)}
        with in_our_words():
            answer = await self._cluster.call(target.node_id, op, params, request_id=request_id)
        faultpoints.reach("server.context.answered")
        return answer


def choose_run_format(accept: str | None) -> str:
    """`json` or `ndjson`. Raises NotAcceptable."""
    chosen = choose_format(accept)
    if chosen == "frames":
        raise NotAcceptable(f"Accept: {shown(accept)}: a run has no frames", hint="application/x-ndjson streams it")
    return chosen


def check_language(language: str) -> str:
    """Raises InvalidRequest."""
    if language not in LANGUAGES:
        meant = _MEANT.get(language.lower())
        hint = f"did you mean {meant!r}?" if meant else did_you_mean(language, LANGUAGES)
        raise refuse("language", language, "has no kernel", hint or f"one of: {', '.join(LANGUAGES)}")
    return language


def check_id(context_id: str) -> str:
    if context_id not in LANGUAGES and not CONTEXT_ID.fullmatch(context_id):
        raise not_found()
    return context_id


def not_found() -> NotFound:
    return NotFound(
        "there is no such context in this sandbox", hint="GET .../contexts lists them", details={"kind": "context"}
    )


def in_our_words() -> AbstractContextManager[None]:
    return guard.unknown_as(not_found())


def _around(target: Target) -> dict[str, Any]:
    return {**target.ref, "cwd": target.workdir, "user": target.user, "env": target.env}


def _id_of(sandbox_id: str, key: str) -> str:
    return "cx" + encode_base32(hashlib.sha256(f"{sandbox_id} {key}".encode()).digest())[:20]


def _timeout(value: Any) -> float:
    if value is None:
        return DEFAULT_RUN_TIMEOUT_S
    seconds = parse_duration(value, "timeout")
    if seconds > MAX_RUN_TIMEOUT_S:
        raise refuse("timeout", value, f"is over the {MAX_RUN_TIMEOUT_S:g} s that a run may take")
    return seconds
