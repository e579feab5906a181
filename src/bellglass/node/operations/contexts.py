"""context.create, list, delete, run, interrupt and restart."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

from bellglass import ids
from bellglass.errors import InvalidRequest, NotFound, NotSupported
from bellglass.link import LinkStream
from bellglass.model import MAX_CODE_BYTES
from bellglass.node.app import Node
from bellglass.node.contexts.answers import Answer, Buffered, Streamed
from bellglass.node.contexts.context import Code, Context
from bellglass.node.contexts.host import Surroundings
from bellglass.node.contexts.run import ContextRun
from bellglass.node.executions.spec import check_environment
from bellglass.node.live import LiveSandbox
from bellglass.node.operations.executions import surrounding_env
from bellglass.node.params import Params, check_encodable
from bellglass.wire.output import KEEPALIVE_S

_ANSWERS: dict[str, type[Answer]] = {"json": Buffered, "ndjson": Streamed}


def _live(node: Node, params: Params) -> LiveSandbox:
    return node.sandboxes.live(params.text("sandbox_id", limit=64), params.integer("generation"))


async def _around(node: Node, params: Params) -> Surroundings:
    env = check_environment(params.mapping("env", {}))
    env = await surrounding_env(node, _live(node, params), env)
    cwd, user = params.text("cwd"), params.text("user")
    if not cwd.startswith("/"):
        raise InvalidRequest(f"cwd: {cwd!r} is not an absolute path", details={"field": "cwd"})
    return Surroundings(cwd, user, env, node.disk.check)


async def create(node: Node, params: Params, stream: LinkStream) -> None:
    around = await _around(node, params)
    contexts = _live(node, params).contexts
    context = await contexts.create(params.text("context_id", limit=64), params.text("language", limit=64), around)
    await stream.send_head({"result": context.record()}, end=True)


async def list_all(node: Node, params: Params, stream: LinkStream) -> None:
    await stream.send_head({"result": {"contexts": _live(node, params).contexts.records()}}, end=True)


async def delete(node: Node, params: Params, stream: LinkStream) -> None:
    await _live(node, params).contexts.delete(params.text("context_id", limit=64))
    await stream.send_head({"result": {}}, end=True)


async def interrupt(node: Node, params: Params, stream: LinkStream) -> None:
    context = _live(node, params).contexts.get(params.text("context_id", limit=64))
    await stream.send_head({"result": {"interrupted": context.interrupt()}}, end=True)


async def restart(node: Node, params: Params, stream: LinkStream) -> None:
    around = await _around(node, params)
    context = _live(node, params).contexts.get_or_default(params.text("context_id", limit=64), around)
    await context.restart(around)
    await stream.send_head({"result": context.record()}, end=True)


async def run(node: Node, params: Params, stream: LinkStream) -> None:
    """Sent again with the same run id it goes on with that run, `after` an offset, and never runs it twice."""
    accept = params.text("accept", "json", limit=16)
    if accept not in _ANSWERS:
        raise InvalidRequest(f"accept: {accept!r} is none of {', '.join(_ANSWERS)}", details={"field": "accept"})
    code, quiet_s = _code(params), params.seconds("keepalive_s", KEEPALIVE_S)
    around = await _around(node, params)
    contexts = _live(node, params).contexts
    context = contexts.get_or_default(params.text("context_id", limit=64), around)
    answer = _ANSWERS[accept](stream)
    try:
        begun = await _begun(context, code, around, answer, quiet_s)
    except NotSupported:
        contexts.drop_unused(context)
        raise
    await begun.deliver(answer, after=params.integer("after", None), code=code.code, env=code.env, quiet_s=quiet_s)


async def _begun(context: Context, code: Code, around: Surroundings, answer: Answer, quiet_s: float) -> ContextRun:
    """Wait for its turn; the client hears that it is still there."""
    waiting = asyncio.ensure_future(context.begin(code, around))
    try:
        while not (await asyncio.wait({waiting}, timeout=quiet_s))[0]:
            await answer.keepalive()
    except BaseException:
        waiting.cancel()
        await asyncio.wait({waiting})
        if not waiting.cancelled() and waiting.exception() is None:
            waiting.result().abandon(hung_up=answer.stream.peer_gone == "reset")
        raise
    return waiting.result()


def _code(params: Params) -> Code:
    run_id, code = params.text("run_id", limit=64), params.raw("code")
    if not ids.EXECUTION_ID.fullmatch(run_id):
        raise NotFound(f"no run {run_id!r}", details={"field": "id"})
    if not isinstance(code, str):
        raise InvalidRequest("code: is no text", details={"field": "code"})
    check_encodable(code, "code")
    if (size := len(code.encode("utf-8", "surrogateescape"))) > MAX_CODE_BYTES:
        raise InvalidRequest(
            f"code: {size} bytes, the most is {MAX_CODE_BYTES}",
            hint="write it to a file in the sandbox and run that",
            details={"field": "code"},
        )
    env = check_environment(params.mapping("run_env", {}))
    timeout_s = params.seconds("timeout_s", None)
    identity: list[Any] = [code, env, timeout_s]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return Code(run_id, code, env, timeout_s, digest)
