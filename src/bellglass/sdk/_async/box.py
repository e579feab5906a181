"""A sandbox as an object: everything that is done to one that exists. Creating and finding one is `_face.py`'s."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import PurePath
from typing import Any

from bellglass.errors import BellglassError, ClientError
from bellglass.ids import new_ulid
from bellglass.model import Event, LogLine, SandboxMetrics
from bellglass.model import Execution as ExecutionInfo
from bellglass.model import Sandbox as SandboxInfo
from bellglass.sdk._async.contexts import AsyncContext, AsyncContexts, context_of
from bellglass.sdk._async.contexts import run_code as run_code_in
from bellglass.sdk._async.events import read_events
from bellglass.sdk._async.executions import AsyncExecution, run
from bellglass.sdk._async.executions import start as start_execution
from bellglass.sdk._async.files import AsyncFiles
from bellglass.sdk._async.logs import read_logs
from bellglass.sdk._async.network import AsyncBoxNetwork
from bellglass.sdk._async.ports import AsyncPort
from bellglass.sdk._async.ports import ports as list_ports
from bellglass.sdk._async.ports import publish as publish_port
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._commands import command as make_command
from bellglass.sdk._http import sandbox_path, target
from bellglass.sdk._options import check_json, create_body, refuse_unknown
from bellglass.sdk._results import DEFAULT_MAX_OUTPUT, ExecResult
from bellglass.sdk._runs import Result, RunResult

_UNDO_TIMEOUT_S = 10.0
_UPDATES = {"labels", "lifetime", "keep_for", "expires_at", "idle_timeout"}


class AsyncBox:
    """One sandbox. `files` moves files in and out, `network` says what it may reach, `contexts` hold state between runs
    of code."""

    _transport: AsyncTransport
    _info: SandboxInfo | None = None

    def _attach(self, transport: AsyncTransport, info: SandboxInfo) -> None:
        self._transport = transport
        self._info = info
        self.files = AsyncFiles(transport, info.id, lambda: self.workdir)
        self.network = AsyncBoxNetwork(transport, info.id)
        self.contexts = AsyncContexts(transport, info.id)

    async def _create(
        self, transport: AsyncTransport, template: str, options: Mapping[str, Any], *, get_or_create: bool = False
    ) -> None:
        # With the key a create whose answer was lost can be sent again without making a second sandbox.
        request: dict[str, Any] = {
            "json": create_body(template, options, get_or_create=get_or_create),
            "headers": {"idempotency-key": new_ulid()},
            "idempotent": True,
        }
        try:
            answer = await transport.request("POST", "/v1/sandboxes", **request)
        except BellglassError:
            raise
        except BaseException:
            # Ctrl-c or a cancelled task: nobody will ever hold what is being made.
            if not get_or_create:
                await self._undo(transport, request)
            raise
        self._attach(transport, SandboxInfo.from_json(answer.json()))

    async def _undo(self, transport: AsyncTransport, request: dict[str, Any]) -> None:
        """Ask again, with the same key, for what an abandoned create made, and delete that."""
        try:
            answer = await transport.request("POST", "/v1/sandboxes", read_timeout_s=_UNDO_TIMEOUT_S, **request)
            await transport.request("DELETE", sandbox_path(answer.json()["id"]), idempotent=True)
        except BellglassError:
            pass  # it failed, or the server is away: then its lifetime ends it, and the caller is on its way out

    @property
    def _known(self) -> SandboxInfo:
        if self._info is None:
            raise ClientError(
                "this sandbox is not created yet", hint="`await` the AsyncSandbox, or use it with `async with`"
            )
        return self._info

    @property
    def id(self) -> str:
        return self._known.id

    @property
    def name(self) -> str | None:
        return self._known.name

    @property
    def state(self) -> str:
        """As of the last answer about it; `info()` asks anew."""
        return self._known.state

    @property
    def workdir(self) -> str:
        return self._known.workdir

    @property
    def labels(self) -> dict[str, str]:
        return dict(self._known.labels)

    def __repr__(self) -> str:
        if self._info is None:
            return f"<{type(self).__name__} not created yet>"
        return f"<{type(self).__name__} {self.id} {self.state}>"

    async def info(self) -> SandboxInfo:
        """Its record as it is now. Raises NotFound once it was deleted; an ended one tells its `termination_reason`."""
        answer = await self._transport.request("GET", sandbox_path(self.id), idempotent=True)
        self._info = SandboxInfo.from_json(answer.json())
        return self._info

    async def update(self, **changes: Any) -> SandboxInfo:
        """Change `labels` (as a whole), `idle_timeout` (None: no such limit), and when it ends: `lifetime` is counted
        from now, `keep_for` too but never shortens, `expires_at` is a time, at once if it has passed.

        Raises InvalidRequest, NotFound, SandboxGone."""
        refuse_unknown("update()", changes, _UPDATES)
        for name, value in changes.items():
            check_json(name, value)
        answer = await self._transport.request("PATCH", sandbox_path(self.id), json=changes, idempotent=True)
        self._info = SandboxInfo.from_json(answer.json())
        return self._info

    async def exec(
        self,
        command: Sequence[str | PurePath] | str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | PurePath | None = None,
        user: str | None = None,
        timeout: int | float | str | None = None,
        stdin: Any = None,
        check: bool = False,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        max_output: int | float | str = DEFAULT_MAX_OUTPUT,
        id: str | None = None,
    ) -> ExecResult:
        """Run a command and wait for its end.

        `command` is a list of arguments (no shell; PATH is looked up) or a string for the shell. `timeout` is at most
        600 s (default 300 s): the whole tree of processes is killed then, which is a result (`timed_out`) and no error.
        `stdin` is text, bytes, a file object or an iterator of either; without it the program reads end-of-file.
        `on_stdout` and `on_stderr` get text as it comes. Of each stream `max_output` bytes are kept.
        A program that is missing (127), fails or is killed is a result as well.

        Raises ExecutionFailed (only with `check`), InvalidCommand, InvalidRequest, NotFound, SandboxGone,
        StreamInterrupted (the outcome is not known; `execution(id)` attaches again), ConnectionFailed, AgentLost."""
        planned = make_command(command, env=env, cwd=cwd, user=user, timeout=timeout, stdin=stdin, id=id)
        return await run(
            self._transport,
            self.id,
            planned,
            create=True,
            check=check,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            max_output=max_output,
        )

    async def start(
        self,
        command: Sequence[str | PurePath] | str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | PurePath | None = None,
        user: str | None = None,
        timeout: int | float | str | None = None,
        stdin: str | bytes | None = None,
        stdin_open: bool = False,
        terminal: tuple[int, int] | None = None,
        tag: str | None = None,
        id: str | None = None,
    ) -> AsyncExecution:
        """Start a command and return at once. Without `timeout` it runs until it ends or its sandbox does.

        With `stdin_open` its input comes by `write_stdin` and ends with `close_stdin`. `executions(tag=...)` finds it
        again by its `tag`. With a `terminal` of so many columns and rows its output and error are one, input is what is
        typed, and TERM is xterm-256color if `env` has none."""
        planned = make_command(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            stdin=stdin,
            stdin_open=stdin_open,
            detach=True,
            tag=tag,
            terminal=terminal,
            id=id,
        )
        made = await start_execution(self._transport, self.id, planned.body)
        # Under an id that was given it may be an older one, that has some of its input already.
        execution = AsyncExecution(self._transport, self.id, made.id, input_position=0 if id is None else None)
        if planned.stdin is not None:
            for piece in planned.stdin:
                await execution.write_stdin(piece)
            await execution.close_stdin()
        return execution

    async def run_code(
        self,
        code: str,
        *,
        context: AsyncContext | str | None = None,
        language: str | None = None,
        timeout: int | float | str | None = None,
        env: Mapping[str, str] | None = None,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_result: Callable[[Result], Any] | None = None,
    ) -> RunResult:
        """Run code in a context, by default the one of `language` ("python"), and wait for its end.

        What the code raises is a result (`error`). After `timeout` (300 s) it is interrupted, which is a result too
        (`timed_out`), and variables stay. `env` is there for this run alone. `on_stdout`, `on_stderr` and `on_result`
        get what comes as it comes. A caller that goes away interrupts the run.

        Raises KernelDied (`details` say of what; the next run has a fresh kernel), NotSupported (the template has no
        interpreter), InvalidRequest, NotFound, SandboxGone, LimitExceeded, ConnectionFailed, StreamInterrupted."""
        return await run_code_in(
            self._transport,
            self.id,
            context_of(context, language),
            code,
            timeout=timeout,
            env=env,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
        )

    def execution(self, id: str) -> AsyncExecution:
        """The handle of an execution that was started before, here or elsewhere. Nothing is asked of the server yet."""
        return AsyncExecution(self._transport, self.id, id)

    async def executions(
        self, *, state: str | None = None, tag: str | None = None, pid: int | None = None
    ) -> AsyncIterator[ExecutionInfo]:
        """The records of its executions, newest first; `state` is `running`, `exited` or `lost`. With a `tag` those
        that have it, with a `pid` those whose first process has or had that one inside the sandbox."""
        cursor: str | None = None
        while True:
            wanted = {"state": state, "tag": tag, "pid": pid, "cursor": cursor}
            path = target(sandbox_path(self.id) + "/executions", wanted)
            page = (await self._transport.request("GET", path, idempotent=True)).json()
            for item in page["items"]:
                yield ExecutionInfo.from_json(item)
            cursor = page.get("cursor")
            if not cursor:
                return

    async def publish(
        self,
        port: int,
        *,
        visibility: str = "private",
        expires_in: int | float | str | None = None,
        host_header: str | None = None,
        frame_ancestors: Sequence[str] | None = None,
        http2: bool = False,
        tls: bool = False,
        own_address: bool = False,
    ) -> AsyncPort:
        """Give a port that a program inside listens on an URL, which is an origin of its own.

        Private unless `visibility="public"`: who visits needs a link of the answer's `token_url()`. `host_header` is
        what the program gets as Host; `frame_ancestors` may show it in a frame; `http2` says that the program speaks it
        without TLS, as gRPC servers do; `tls` that it speaks TLS alone, with any certificate; `own_address` is a
        loopback address instead of a name. Published again, it has the new options and its tokens go on.

        Raises InvalidRequest, NotFound, SandboxGone, LimitExceeded, NotSupported."""
        options: dict[str, Any] = {
            "visibility": visibility,
            "expires_in": expires_in,
            "host_header": host_header,
            "frame_ancestors": None if frame_ancestors is None else [*frame_ancestors],
            "http2": http2,
            "tls": tls,
            "own_address": own_address,
        }
        return await publish_port(self._transport, self.id, port, options)

    async def ports(self) -> builtins.list[AsyncPort]:
        """Its published ports, by number."""
        return await list_ports(self._transport, self.id)

    async def events(
        self,
        *,
        follow: bool = False,
        types: Sequence[str] = (),
        since: str | None = None,
        cursor: int | None = None,
    ) -> AsyncIterator[Event]:
        """What happened to it, oldest first: its states, its network and ports, each refusal of its egress. It can be
        asked also after its end.

        With `follow` it goes on with what comes, for ever, over connections that break: no event is missed or comes
        twice. `types` are such as "egress.refused" or "egress.*"; `since` is a time or a duration back from now
        ("15m"); `cursor` is the `seq` of an event to go on behind. Raises NotFound, ConnectionFailed."""
        path = sandbox_path(self.id) + "/events"
        events = read_events(self._transport, path, follow=follow, types=types, since=since, cursor=cursor)
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                yield event

    async def logs(
        self,
        *,
        backward: bool = False,
        start: str | None = None,
        end: str | None = None,
        search: str | None = None,
        execution: str | None = None,
    ) -> AsyncIterator[LogLine]:
        """What its executions wrote and what happened to it, line by line in the order of time, or backward.

        `start` and `end` are times or durations back from now ("15m"); with `search` only lines that hold this text;
        `execution` is the id of one. Raises InvalidRequest, NotFound, NodeUnavailable."""
        query = {"start": start, "end": end, "search": search, "execution": execution}
        lines = read_logs(self._transport, self.id, {**query, "direction": "backward" if backward else None})
        async with aclosing(lines):  # type: ignore[type-var]
            async for line in lines:
                yield line

    async def metrics(
        self, *, start: str | None = None, end: str | None = None, limit: int | None = None
    ) -> builtins.list[SandboxMetrics]:
        """What it uses, oldest first: a sample every few seconds for the last hour, one a minute for the day before. Of
        a running one the last sample is of now.

        `start` and `end` are times or durations back from now ("15m"); of what lies between `limit` are the newest.
        Raises InvalidRequest, NotFound, NotSupported, NodeUnavailable."""
        path = target(sandbox_path(self.id) + "/metrics", {"start": start, "end": end, "limit": limit})
        page = (await self._transport.request("GET", path, idempotent=True)).json()
        return [SandboxMetrics.from_json(item) for item in page["items"]]

    async def delete(self) -> None:
        """End it: every process dies, its files are gone. It having ended already is success. Raises NotFound."""
        await self._transport.request("DELETE", sandbox_path(self.id), idempotent=True)
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of this object and leave the sandbox running."""
        await self._transport.aclose()


async def list_sandboxes(transport: AsyncTransport, query: list[tuple[str, Any]]) -> AsyncIterator[SandboxInfo]:
    """Every page of a listing."""
    cursor: str | None = None
    while True:
        path = target("/v1/sandboxes", [*query, ("cursor", cursor)])
        page = (await transport.request("GET", path, idempotent=True)).json()
        for item in page["items"]:
            yield SandboxInfo.from_json(item)
        cursor = page.get("cursor")
        if not cursor:
            return
