"""execution.create, get, find, list, output, stdin, resize and signal."""

from __future__ import annotations

import dataclasses
import signal as signals

from bellglass.errors import Conflict, InvalidRequest
from bellglass.link import LinkStream
from bellglass.model import MAX_TERMINAL
from bellglass.node.app import Node
from bellglass.node.executions import attached, registry, render, spec
from bellglass.node.executions.records import Wanted
from bellglass.node.executions.registry import View
from bellglass.node.executions.run import Run
from bellglass.node.executions.spec import ExecutionSpec
from bellglass.node.live import LiveSandbox
from bellglass.node.net import identity
from bellglass.node.params import Params
from bellglass.wire.output import KEEPALIVE_S

MOST_LISTED = 1000


def _live(node: Node, params: Params) -> LiveSandbox:
    return node.sandboxes.live(params.text("sandbox_id", limit=64), params.integer("generation"))


def _view(node: Node, params: Params) -> View:
    """Also of a sandbox that has ended, while its records are kept."""
    sandbox_id, execution_id = params.text("sandbox_id", limit=64), params.text("execution_id", limit=64)
    row = node.sandboxes.row(sandbox_id, params.integer("generation"))
    if row.state in ("ending", "ended"):
        return registry.finished(node.records, sandbox_id, node.sandboxes.log_folder(sandbox_id), execution_id)
    return _live(node, params).executions.view(execution_id)


async def create(node: Node, params: Params, stream: LinkStream) -> None:
    live = _live(node, params)
    accept = render.check_accept(params.text("accept", "json"))
    wanted = spec.read(params, shell=live.shell)
    view = live.executions.known(wanted)  # which is answered at once, however many wait for their turn
    if view is None:
        view = await _begun(node, params, live, wanted)
    if wanted.detach and not params.flag("follow"):
        if view.run is not None:
            await view.run.started()
        await stream.send_head({"result": view.record()}, end=True)
    else:
        # The same request sent again, since its connection broke, is its starter as well. A detached one waits for
        # whoever reads from its beginning only while he reads.
        reading = render.Reading(
            accept,
            params.seconds("keepalive_s", KEEPALIVE_S),
            follow=True,
            starter=not wanted.detach,
            holds=wanted.detach,
        )
        await render.deliver(view, stream, reading)


async def _begun(node: Node, params: Params, live: LiveSandbox, wanted: ExecutionSpec) -> View:
    wanted = dataclasses.replace(wanted, env=await surrounding_env(node, live, wanted.env))
    async with node.turns.of(live.sandbox_id) as turn:
        live = _live(node, params)  # others started meanwhile, and the tools may have been asked
        run, view = live.executions.create(wanted, before_new=node.disk.check)
        if run is not None:
            run.start_known.keep(turn)
    return view


async def surrounding_env(node: Node, live: LiveSandbox, env: dict[str, str]) -> dict[str, str]:
    """`env` with what the sandbox's network and identity add: presets below it, the identity above."""
    if variables := await node.sandboxes.presets.variables(live.spec.network):
        env = {**variables, **env}
    if node.sandboxes.identities is not None and live.spec.identity:
        env = {**env, **identity.variables(live.sandbox_id)}
    return env


async def get(node: Node, params: Params, stream: LinkStream) -> None:
    await stream.send_head({"result": _view(node, params).record()}, end=True)


async def list_all(node: Node, params: Params, stream: LinkStream) -> None:
    sandbox_id = params.text("sandbox_id", limit=64)
    row = node.sandboxes.row(sandbox_id, params.integer("generation"))
    state = params.text("state", None, limit=16)
    if state is not None and state not in registry.STATES:
        raise InvalidRequest(f"state: {state!r} is none of {', '.join(registry.STATES)}", details={"field": "state"})
    wanted = Wanted(
        limit=params.integer("limit", 100, least=1, most=MOST_LISTED),
        before=params.text("cursor", None, limit=64),
        state=state,
        tag=params.text("tag", None),
        pid=params.integer("pid", None),
    )
    if row.state in ("ending", "ended"):
        found = [stored.record for stored in node.records.page(sandbox_id, wanted)]
    else:
        found = _live(node, params).executions.page(wanted)
    cursor = found[-1]["id"] if len(found) == wanted.limit else None
    await stream.send_head({"result": {"executions": found, "cursor": cursor}}, end=True)


async def find(node: Node, params: Params, stream: LinkStream) -> None:
    """The record of the execution with a `tag` or a `pid`: one that runs before those that have ended."""
    tag, pid = params.text("tag", None), params.integer("pid", None)
    if (tag is None) == (pid is None):
        raise InvalidRequest("give either a tag or a pid", details={"field": "tag"})
    await stream.send_head({"result": _live(node, params).executions.find(tag=tag, pid=pid)}, end=True)


async def output(node: Node, params: Params, stream: LinkStream) -> None:
    reading = render.Reading(
        render.check_accept(params.text("accept", "json")),
        params.seconds("keepalive_s", KEEPALIVE_S),
        offset=params.integer("offset", 0),
        follow=params.flag("follow"),
        starter=params.flag("resume"),
        live=params.flag("live"),
        holds=params.flag("holds"),
    )
    await render.deliver(_view(node, params), stream, reading)


async def write_stdin(node: Node, params: Params, stream: LinkStream) -> None:
    live = _live(node, params)
    run = live.executions.live(params.text("execution_id", limit=64))
    feed = run.input()
    eof, written, offset = params.flag("eof"), 0, params.integer("offset", None)

    def at() -> int | None:
        return None if offset is None else offset + written

    async for chunk in stream:
        live.active()
        await feed.write(chunk, at())
        written += len(chunk)
    if written == 0:
        await feed.write(b"", at())
    stands_at = await feed.settled()
    if eof:
        await run.end_input(at())
    await stream.send_head({"result": {"written": written, "offset": stands_at}}, end=True)


async def attach(node: Node, params: Params, stream: LinkStream) -> None:
    """Both directions of a terminal: its output as frames, what is typed and sizes as frames of InputType."""
    view = _view(node, params)
    if view.record().get("terminal") is None:
        raise Conflict(
            f"execution {view.id} has no terminal",
            hint="start it with `terminal`; others are read with GET .../output and written to with POST .../stdin",
        )
    reading = render.Reading(
        "frames",
        params.seconds("keepalive_s", KEEPALIVE_S),
        offset=params.integer("offset", 0),
        follow=True,
        live=params.flag("live"),
    )
    active = _live(node, params).active if view.run is not None else None
    await attached.attach(view, stream, reading, params.text("client", None, limit=64), active)


async def resize(node: Node, params: Params, stream: LinkStream) -> None:
    live = _live(node, params)
    run = live.executions.live(params.text("execution_id", limit=64))
    set_size(run, params)
    await stream.send_head({"result": {}}, end=True)


def set_size(run: Run, params: Params) -> None:
    """Raises Conflict for an execution without a terminal, InvalidRequest."""
    if run.terminal is None:
        raise Conflict(f"execution {run.spec.id} has no terminal", hint="start it with `terminal`")
    columns, rows = (params.integer(name, least=1, most=MAX_TERMINAL) for name in ("cols", "rows"))
    run.terminal.resize(columns, rows)


async def send_signal(node: Node, params: Params, stream: LinkStream) -> None:
    live = _live(node, params)
    run = live.executions.live(params.text("execution_id", limit=64))
    scope = params.text("scope", "tree", limit=16)
    if scope not in ("tree", "process"):
        raise InvalidRequest(f"scope: {scope!r} is neither 'tree' nor 'process'", details={"field": "scope"})
    run.signal(_number(params.raw("signal")), whole_tree=scope == "tree")
    await stream.send_head({"result": {}}, end=True)


def _number(value: object) -> int:
    """`SIGTERM`, `TERM` or 15."""
    if isinstance(value, str):
        name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
        if name in signals.Signals.__members__:
            return int(signals.Signals[name])
    elif isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 64:
        return value
    raise InvalidRequest(
        f"signal: {str(value)[:40]!r} is not a signal", hint='such as "SIGTERM" or 15', details={"field": "signal"}
    )
