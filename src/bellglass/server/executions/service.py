"""Calls for executions: one indexed read, then the link. Ids that don't fit their grammar are unknown ids."""

from __future__ import annotations

import dataclasses
import signal as signals
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing
from typing import Any

from bellglass.errors import InvalidRequest, NodeUnavailable, NotFound, from_dict
from bellglass.ids import EXECUTION_ID
from bellglass.link import LinkStream
from bellglass.model import CreateExecution, Terminal
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.db.reader import Reader
from bellglass.server.executions.validate import check_client, check_size, check_tag, settle
from bellglass.server.http.validation import did_you_mean, shown
from bellglass.server.sandboxes import guard
from bellglass.server.sandboxes.guard import Target
from bellglass.wire.output import OutputDecoder, OutputEvent, OutputType

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
        self,
        project_id: str,
        sandbox_id: str,
        state: str | None,
        limit: int,
        cursor: str | None,
        request_id: str,
        *,
        tag: str | None = None,
        pid: int | None = None,
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
        check_tag(tag)
        target = guard.readable(self._reader, project_id, sandbox_id)
        params = {**target.ref, "limit": limit, "cursor": cursor, "state": state, "tag": tag, "pid": pid}
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
        resume: bool = False,
        live: bool = False,
        holds: bool = False,
        keepalive_s: float | None = None,
    ) -> LinkStream:
        """A stream that answers with the output. `live`: only what comes from now on. `holds`: the program never gets
        far ahead of this reader, and is let go when it leaves."""
        target = guard.readable(self._reader, project_id, sandbox_id)
        params = {
            **target.ref, "execution_id": check_id(execution_id), "offset": offset, "follow": follow, "accept": accept,
            "resume": resume, "live": live, "holds": holds, "keepalive_s": keepalive_s or self._keepalive_s,
        }  # fmt: skip
        return await self._cluster.open(target.node_id, "execution.output", params, request_id=request_id)

    async def stdin(
        self, project_id: str, sandbox_id: str, execution_id: str, request_id: str, *, offset: int | None, eof: bool
    ) -> LinkStream:
        """A stream that takes the bytes and answers `{"written", "offset"}`."""
        target = guard.running(self._reader, project_id, sandbox_id)
        params = {**target.ref, "execution_id": check_id(execution_id), "eof": eof, "offset": offset}
        return await self._cluster.open(target.node_id, "execution.stdin", params, request_id=request_id, body=True)

    async def resize(
        self, project_id: str, sandbox_id: str, execution_id: str, size: Terminal, request_id: str
    ) -> None:
        """Raises Conflict for one that has ended or has no terminal."""
        check_size(size)
        target = guard.running(self._reader, project_id, sandbox_id)
        await self._call(target, "execution.resize", execution_id, size.to_json(), request_id)

    async def attach(
        self,
        project_id: str,
        sandbox_id: str,
        execution_id: str,
        request_id: str,
        *,
        offset: int = 0,
        live: bool = False,
        client: str | None = None,
    ) -> LinkStream:
        """A stream both ways: frames of OutputType come, frames of InputType go; its end from this side means that the
        client leaves for good."""
        check_client(client)
        target = guard.readable(self._reader, project_id, sandbox_id)
        params = {
            **target.ref, "execution_id": check_id(execution_id), "offset": offset, "live": live, "client": client,
            "keepalive_s": self._keepalive_s,
        }  # fmt: skip
        return await self._cluster.open(target.node_id, "execution.attach", params, request_id=request_id, body=True)

    # --- for those that answer in a protocol of their own -----------------------------------------------

    async def start(self, project_id: str, sandbox_id: str, body: CreateExecution, request_id: str) -> dict[str, Any]:
        """Start it detached, whatever `body` says; its record, with the pid, once the program runs."""
        detached = dataclasses.replace(body, detach=True)
        _, stream = await self.create(project_id, sandbox_id, detached, "json", request_id)
        async with stream:
            record: dict[str, Any] = (await stream.head())["result"]
        return record

    async def start_following(
        self, project_id: str, sandbox_id: str, body: CreateExecution, request_id: str, *, keepalive_s: float
    ) -> tuple[str, LinkStream]:
        """Start it detached, whatever `body` says, and read it from its beginning: its id, and a stream of frames. The
        program never gets far ahead of this reader, and is let go when it leaves."""
        target = guard.running(self._reader, project_id, sandbox_id)
        execution_id, params = settle(dataclasses.replace(body, detach=True), target, "frames")
        params.update(follow=True, keepalive_s=keepalive_s)
        stream = await self._cluster.open(target.node_id, "execution.create", params, request_id=request_id)
        return execution_id, stream

    async def find(
        self, project_id: str, sandbox_id: str, request_id: str, *, tag: str | None = None, pid: int | None = None
    ) -> dict[str, Any]:
        """The record of the execution with this tag, or else this pid: the newest that runs, else the newest that has
        ended. Raises NotFound."""
        target = guard.running(self._reader, project_id, sandbox_id)
        with in_our_words():
            return await self._cluster.call(
                target.node_id, "execution.find", {**target.ref, "tag": tag, "pid": pid}, request_id=request_id
            )

    async def follow(
        self,
        project_id: str,
        sandbox_id: str,
        execution_id: str,
        request_id: str,
        *,
        offset: int = 0,
        live: bool = False,
        holds: bool = False,
        keepalive_s: float | None = None,
    ) -> AsyncGenerator[OutputEvent]:
        """STARTED, output as it comes (a KEEPALIVE in each so many seconds of silence), and EXIT last, also of one that
        has ended. To be closed (`aclosing`). Raises the error in place of EXIT, NotFound, and NodeUnavailable when the
        stream was cut: then go on behind the last byte."""
        stream = await self.output(
            project_id, sandbox_id, execution_id, "frames", request_id,
            offset=offset, follow=True, live=live, holds=holds, keepalive_s=keepalive_s,
        )  # fmt: skip
        decoder = OutputDecoder()
        async with stream:
            with in_our_words():
                await stream.head()
            async for chunk in stream:
                for event in decoder.feed(chunk):
                    if event.type is OutputType.ERROR:
                        raise from_dict(event.value)
                    yield event

    async def wait(self, project_id: str, sandbox_id: str, execution_id: str, request_id: str) -> dict[str, Any]:
        """Its record once it has ended. Raises as `follow` does."""
        async with aclosing(self.follow(project_id, sandbox_id, execution_id, request_id, live=True)) as events:
            async for event in events:
                if event.type is OutputType.EXIT and event.value is not None:
                    return event.value
        raise NodeUnavailable("the stream ended before its execution did", hint="ask again")

    async def write_input(
        self,
        project_id: str,
        sandbox_id: str,
        execution_id: str,
        data: bytes,
        request_id: str,
        *,
        offset: int | None = None,
        eof: bool = False,
    ) -> int:
        """Put bytes into its standard input and, with `eof`, close that; answers where it stands once the program's
        pipe has taken them. Raises Conflict when it is not open or the execution has ended."""
        stream = await self.stdin(project_id, sandbox_id, execution_id, request_id, offset=offset, eof=eof)
        with in_our_words():
            async with stream:
                if data:
                    await stream.send(data)
                await stream.end()
                head = await stream.head()
        return int(head["result"]["offset"])

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


def in_our_words() -> AbstractContextManager[None]:
    return guard.unknown_as(not_found())


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
