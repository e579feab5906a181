"""The methods of process.Process."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from bellglass.errors import Conflict, NotFound
from bellglass.ids import new_ulid
from bellglass.model import CreateExecution, Terminal
from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.errors import ConnectError
from bellglass.server.compat.e2b.envd.files.paths import acting
from bellglass.server.compat.e2b.envd.messages import Message
from bellglass.server.compat.e2b.envd.process import selector
from bellglass.server.compat.e2b.envd.process.follow import Follower
from bellglass.server.compat.e2b.envd.streams import Client
from bellglass.server.sandboxes import guard

SIGNALS = {"SIGNAL_SIGTERM": "SIGTERM", "SIGNAL_SIGKILL": "SIGKILL", 15: "SIGTERM", 9: "SIGKILL"}
LISTED = 1000


async def start(call: Call, message: Message, client: Client) -> AsyncGenerator[bytes]:
    """Run a command; Connect-Timeout-Ms is its life, and a client that hangs up leaves it running."""
    call.acts("exec.create")
    process = message.message("process")
    if process is None or not process.text("cmd"):
        raise ConnectError("invalid_argument", "process.cmd: is missing")
    tag = message.text("tag") or None
    if selector.is_hidden({"tag": tag}):
        raise ConnectError("invalid_argument", f"tag: {tag!r} is kept for interpreters")
    size = _size(message)
    body = CreateExecution(
        id=new_ulid(),
        command=[process.text("cmd"), *process.texts("args")],
        env=call.target.variables | process.text_map("envs"),
        cwd=await folder(call, process.text("cwd")),
        user=call.user,
        timeout=call.timeout_s,
        stdin_open=size is None and message.flag("stdin", True),
        terminal=size,
        tag=tag,
    )
    execution_id, stream = await call.services.executions.start_following(
        call.project_id, call.sandbox_id, body, call.request_id, keepalive_s=call.keepalive_s
    )
    call.context.objects["execution_id"] = execution_id
    async for batch in Follower(call, execution_id, stream, live=False).messages(client):
        yield batch


async def connect(call: Call, message: Message, client: Client) -> AsyncGenerator[bytes]:
    """What a process says from now on. One that has just ended still tells its end."""
    call.acts("exec.output", audited=False)
    record = await selector.find(call, message, ended=True)
    execution_id = str(record["id"])
    stream = await call.services.executions.output(
        call.project_id, call.sandbox_id, execution_id, "frames", call.request_id,
        offset=0, follow=True, live=True, holds=True, keepalive_s=call.keepalive_s,
    )  # fmt: skip
    async for batch in Follower(call, execution_id, stream, live=True).messages(client):
        yield batch


async def list_processes(call: Call, message: Message) -> dict[str, Any]:
    """Those that run. Their environments are nobody's but their own."""
    call.acts("exec.list", audited=False)
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = await call.services.executions.list(
            call.project_id, call.sandbox_id, "running", LISTED, cursor, call.request_id
        )
        found += [_info(record) for record in page["executions"] if _is_shown(record)]
        cursor = page.get("cursor")
        if cursor is None:
            return {"processes": found}


async def send_input(call: Call, message: Message) -> dict[str, Any]:
    call.acts("exec.stdin")
    record = await selector.find(call, message)
    await _write(call, record, message.message("input"))
    return {}


async def stream_input(call: Call, messages: AsyncIterator[Message]) -> dict[str, Any]:
    """The first message selects the process; each further one is written as it comes."""
    call.acts("exec.stdin")
    record: dict[str, Any] | None = None
    async for message in messages:
        if (begin := message.message("start")) is not None:
            if record is not None:
                raise ConnectError("invalid_argument", "start: came a second time")
            record = await selector.find(call, begin)
        elif record is None:
            raise ConnectError("failed_precondition", "the first message has to be start")
        elif (data := message.message("data")) is not None:
            await _write(call, record, data.message("input"))
        elif not message.has("keepalive"):
            raise ConnectError("unimplemented", "a message that is neither start, data nor keepalive")
    return {}


async def close_stdin(call: Call, message: Message) -> dict[str, Any]:
    call.acts("exec.stdin")
    record = await selector.find(call, message)
    if record.get("terminal") is not None:
        raise ConnectError("failed_precondition", "a terminal's input can't be closed: write its end-of-file character")
    await _put(call, record, b"", eof=True)
    return {}


async def send_signal(call: Call, message: Message) -> dict[str, Any]:
    call.acts("exec.signal")
    record = await selector.find(call, message)
    given: str | int = message.text("signal") if not message.is_number("signal") else message.number("signal")
    if given not in SIGNALS:
        raise ConnectError("unimplemented", f"signal: {given!r} is none of SIGNAL_SIGTERM, SIGNAL_SIGKILL")
    try:
        # The shell alone would leave behind what it runs.
        await call.services.executions.signal(
            call.project_id, call.sandbox_id, str(record["id"]), SIGNALS[given], "tree", call.request_id
        )
    except (Conflict, NotFound):
        raise selector.missing(record) from None
    return {}


async def update(call: Call, message: Message) -> dict[str, Any]:
    """Resize a terminal."""
    call.acts("exec.resize")
    record = await selector.find(call, message)
    size = _size(message)
    if size is None:
        return {}
    if record.get("terminal") is None:
        raise ConnectError("failed_precondition", f"process with pid {record['pid']} has no terminal")
    try:
        await call.services.executions.resize(
            call.project_id, call.sandbox_id, str(record["id"]), size, call.request_id
        )
    except Conflict:
        raise selector.missing(record) from None
    return {}


async def folder(call: Call, cwd: str) -> str | None:
    """Where a command starts: relative to its user's home, and there without `cwd`. None: the sandbox's own folder."""
    if cwd.startswith("/"):
        return cwd
    own = guard.running(call.services.reader, call.project_id, call.sandbox_id).user
    if not cwd and call.user in (None, own):
        return None
    params = {**acting(call), "path": ".", "follow": True}
    found = await call.services.files.call(call.project_id, call.sandbox_id, "file.stat", params, call.request_id)
    home = str(found["info"]["path"])
    return posixpath.normpath(posixpath.join(home, cwd.removeprefix("~").lstrip("/")))


def _size(message: Message) -> Terminal | None:
    """Of the terminal that a message asks for."""
    pty = message.message("pty")
    if pty is None:
        return None
    size = pty.message("size") or Message({})
    return Terminal(cols=size.number("cols", 80), rows=size.number("rows", 24))


async def _write(call: Call, record: dict[str, Any], given: Message | None) -> None:
    terminal = record.get("terminal") is not None
    wanted, other = ("pty", "stdin") if terminal else ("stdin", "pty")
    data = given.octets(wanted) if given is not None else None
    if data is None:
        if given is not None and given.has(other):
            raise ConnectError("failed_precondition", f"input.{other}: this process takes {wanted}")
        raise ConnectError("invalid_argument", f"input.{wanted}: is missing")
    if data:
        await _put(call, record, data)


async def _put(call: Call, record: dict[str, Any], data: bytes, *, eof: bool = False) -> None:
    executions, execution_id = call.services.executions, str(record["id"])
    try:
        await executions.write_input(call.project_id, call.sandbox_id, execution_id, data, call.request_id, eof=eof)
    except Conflict:
        now = await executions.get(call.project_id, call.sandbox_id, execution_id, call.request_id)
        if now["state"] == "running":
            raise
        raise selector.missing(record) from None


def _is_shown(record: dict[str, Any]) -> bool:
    return record.get("pid") is not None and not selector.is_hidden(record)


def _info(record: dict[str, Any]) -> dict[str, Any]:
    command = record["command"]
    argv = [command] if isinstance(command, str) else command
    info: dict[str, Any] = {
        "config": {"cmd": argv[0], "args": argv[1:], "cwd": record["cwd"]},
        "pid": record["pid"],
    }
    if record.get("tag"):
        info["tag"] = record["tag"]
    return info
