"""/v1/sandboxes/{id}/files/watch: a WebSocket that tells what changes in a folder."""

from __future__ import annotations

from typing import Any

from bellglass.errors import InvalidRequest
from bellglass.server.files.routes import FILES
from bellglass.server.files.watching import OWN_TOKENS_FROM, Watching
from bellglass.server.http.actions import Routes
from bellglass.server.http.validation import shown
from bellglass.server.http.websockets import Message, Socket
from bellglass.server.services import project_of, services_of
from bellglass.wire import untrusted

routes = Routes("files")
MESSAGES = (
    Message("out", '{"type": "ready"}', "the first one: what changes from now on is told"),
    Message("out", '{"type": "events", "events": [{"kind", "path", "dir", "cookie"}]}', "`kind` is `create`, `write`,"
            " `remove`, `rename`, `chmod` or `overflow` (some were lost); `path` is relative to the folder"),
    Message("out", '{"type": "synced", "token"}', "all that happened before this `sync` has been told"),
    Message("in", '{"type": "sync", "token": NUMBER}', "asks for that"),
)  # fmt: skip


@routes.socket(
    FILES + "/watch", "file.watch", messages=MESSAGES,
    queries={
        "path": "the folder", "recursive": "`true`: all folders below it as well",
        "user": "with whose rights it is read; by default the sandbox's user",
    },
)  # fmt: skip
async def watch(socket: Socket, sandbox_id: str) -> None:
    """What changes in a folder, until it is gone or the client closes."""
    path, user, recursive = socket.text("path"), socket.text("user"), socket.flag("recursive")
    if path is None:
        raise InvalidRequest("path: is missing", hint="the folder to watch", details={"field": "path"})
    watching = await services_of(socket).files.watch(
        project_of(socket), sandbox_id, path, socket.context.request_id, recursive=recursive, user=user
    )
    async with watching:
        await socket.accept()
        await socket.send('{"type":"ready"}')
        await socket.both(_tell(socket, watching), _listen(socket, watching))


async def _tell(socket: Socket, watching: Watching) -> None:
    async for line in watching.lines():
        await socket.send(line.decode("ascii"))


async def _listen(socket: Socket, watching: Watching) -> None:
    while True:
        await watching.ask(_token(await socket.receive()))


def _token(message: bytes | str) -> int:
    try:
        value: Any = untrusted.parse(message)
    except ValueError:
        value = None
    token = value.get("token") if isinstance(value, dict) and value.get("type") == "sync" else None
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < OWN_TOKENS_FROM:
        raise InvalidRequest(
            f"message: {shown(message)} is none that a watch knows",
            hint='such as {"type": "sync", "token": 1}',
            details={"field": "message"},
        )
    return token
