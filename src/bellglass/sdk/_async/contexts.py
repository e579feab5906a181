"""Interpreter contexts and runs of code in them, followed to their end over connections that break.

A run's id is made here: sent again it goes on where the connection broke, and never runs the code a second time.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from pathlib import PurePath
from typing import Any

from bellglass.errors import ConnectionFailed, NodeUnavailable, NotFound, StreamInterrupted
from bellglass.ids import CONTEXT_ID, new_ulid
from bellglass.model import LANGUAGES
from bellglass.model import Context as ContextInfo
from bellglass.sdk._async._compat import call, sleep
from bellglass.sdk._async.gone import meanwhile
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._http import STREAM_TIMEOUT_S, sandbox_path
from bellglass.sdk._options import check_json, invalid
from bellglass.sdk._patience import RECONNECT_S, Attempts
from bellglass.sdk._runs import Result, RunCollector, RunResult, context_path

NDJSON = "application/x-ndjson"


class AsyncContext:
    """A kernel of its own: what one run leaves behind is there for the next. Runs go one after the other."""

    def __init__(self, transport: AsyncTransport, info: ContextInfo) -> None:
        self._transport = transport
        self._path = context_path(info.sandbox_id, info.id)
        self.info = info
        """Its record as of the last answer about it."""

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def language(self) -> str:
        return self.info.language

    @property
    def cwd(self) -> str:
        return self.info.cwd

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.language}>"

    async def run(
        self,
        code: str,
        *,
        timeout: int | float | str | None = None,
        env: Mapping[str, str] | None = None,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_result: Callable[[Result], Any] | None = None,
    ) -> RunResult:
        """As `box.run_code` in this context."""
        return await run_code(
            self._transport,
            self.info.sandbox_id,
            self.id,
            code,
            timeout=timeout,
            env=env,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
        )

    async def interrupt(self) -> bool:
        """Stop the run under way, if there is one; variables stay. Raises NotFound, SandboxGone."""
        answer = await self._transport.request("POST", self._path + "/interrupt", json={})
        return bool(answer.json()["interrupted"])

    async def restart(self) -> None:
        """A fresh kernel; variables are gone, a run under way ends with KernelDied. Raises NotFound, SandboxGone."""
        answer = await self._transport.request("POST", self._path + "/restart", json={})
        self.info = ContextInfo.from_json(answer.json())

    async def delete(self) -> None:
        """End it with all of its processes. Raises NotFound, SandboxGone."""
        await self._transport.request("DELETE", self._path)


class AsyncContexts:
    """The contexts of one sandbox, which needs a template with a code interpreter ("interpreter")."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._path = sandbox_path(sandbox_id) + "/contexts"

    async def create(self, language: str = "python", cwd: str | PurePath | None = None) -> AsyncContext:
        """A context whose kernel is ready: `python`, `javascript` or `bash`, working in `cwd` (the sandbox's workdir).

        Raises InvalidRequest, InvalidCommand (`cwd`), NotSupported (the template), LimitExceeded, NotFound,
        SandboxGone, KernelDied."""
        body = {"language": language} | ({} if cwd is None else {"cwd": str(cwd)})
        for name, value in body.items():
            check_json(name, value)
        headers = {"idempotency-key": new_ulid()}
        answer = await self._transport.request("POST", self._path, json=body, headers=headers, idempotent=True)
        return AsyncContext(self._transport, ContextInfo.from_json(answer.json()))

    async def list(self) -> builtins.list[AsyncContext]:
        """Oldest first; the default ones, named like their languages, from their first run on."""
        answer = await self._transport.request("GET", self._path, idempotent=True)
        return [AsyncContext(self._transport, ContextInfo.from_json(item)) for item in answer.json()["items"]]


def context_of(context: AsyncContext | str | None, language: str | None) -> str:
    """The id of the context that a run goes to. Raises InvalidRequest."""
    if context is None:
        chosen = "python" if language is None else language
        if chosen not in LANGUAGES:
            raise invalid("language", chosen, "has no kernel", hint=f"one of: {', '.join(LANGUAGES)}")
        return chosen
    if language is not None:
        raise invalid("language", language, "is not given beside a context, which has its own")
    context_id = context if isinstance(context, str) else context.id
    if context_id not in LANGUAGES and not CONTEXT_ID.fullmatch(context_id):
        raise NotFound(f"{context_id!r} is not the id of a context", hint="box.contexts.list() lists them")
    return context_id


async def run_code(
    transport: AsyncTransport,
    sandbox_id: str,
    context_id: str,
    code: str,
    *,
    timeout: int | float | str | None = None,
    env: Mapping[str, str] | None = None,
    on_stdout: Callable[[str], Any] | None = None,
    on_stderr: Callable[[str], Any] | None = None,
    on_result: Callable[[Result], Any] | None = None,
) -> RunResult:
    body: dict[str, Any] = {"id": new_ulid(), "code": code}
    if timeout is not None:
        body["timeout"] = timeout
    if env is not None:
        body["env"] = dict(env)
    for name, value in body.items():
        check_json(name, value)
    collector = RunCollector(context_id)
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}
    lines = _lines(transport, context_path(sandbox_id, context_id) + "/run", body, collector)
    async with aclosing(lines):  # type: ignore[type-var]
        async for line in lines:
            result = collector.feed(line)
            if result is not None and on_result is not None:
                await call(on_result, result)
            callback = callbacks.get(line["type"])
            if callback is not None:
                await call(callback, line["text"])
    return collector.finish()


async def _lines(
    transport: AsyncTransport, path: str, body: dict[str, Any], collector: RunCollector
) -> AsyncIterator[dict[str, Any]]:
    """The lines of a run to its end. A broken connection is made again, behind the line that came last. Raises
    StreamInterrupted when that fails for RECONNECT_S, ConnectionFailed when there was no server to begin with,
    SandboxGone where it was deleted under the run."""
    attempts, began = Attempts(), False
    while True:
        asked = body if collector.offset is None else {**body, "after": collector.offset}
        try:
            response = await transport.open("POST", path, json=asked, accept=NDJSON, read_timeout_s=STREAM_TIMEOUT_S)
            began = True
            try:
                rest = b""
                async with aclosing(response.__aiter__()) as chunks:  # type: ignore[type-var]
                    async for chunk in chunks:
                        attempts.success()
                        *whole, rest = (rest + chunk).split(b"\n")
                        for line in whole:
                            yield json.loads(line)
            finally:
                await response.aclose()
            if collector.ending is not None:
                return
            raise ConnectionFailed("the answer ended before the run did", details={"stage": "exchange"})
        except (ConnectionFailed, NodeUnavailable, json.JSONDecodeError) as error:
            if collector.ending is not None:
                return
            delay_s = attempts.delay_s(error)
            if delay_s is None:
                raise StreamInterrupted(
                    f"how run {body['id']} ended is not known: the server was away for {RECONNECT_S:.0f} s",
                    details={"run_id": body["id"]},
                ) from error
            await sleep(delay_s)
        except NotFound as error:
            raise (meanwhile(error) if began else error) from None
