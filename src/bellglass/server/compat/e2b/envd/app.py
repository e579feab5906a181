"""What answers for port 49983 of a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import Request
from starlette.responses import Response

from bellglass.errors import BellglassError
from bellglass.server.compat.e2b.actions import services_of
from bellglass.server.compat.e2b.envd import connect, errors, streams
from bellglass.server.compat.e2b.envd.call import Call, call_of
from bellglass.server.compat.e2b.envd.errors import ConnectError, connect_error
from bellglass.server.compat.e2b.envd.files import access
from bellglass.server.compat.e2b.envd.files import calls as files
from bellglass.server.compat.e2b.envd.filesystem import calls as filesystem
from bellglass.server.compat.e2b.envd.filesystem import watch
from bellglass.server.compat.e2b.envd.messages import Message
from bellglass.server.compat.e2b.envd.process import calls as process
from bellglass.server.compat.e2b.envd.streams import Client, StreamAnswer
from bellglass.server.compat.e2b.errors import not_running
from bellglass.server.compat.e2b.routing import Destination, admit
from bellglass.server.http.context import context_of

Unary = Callable[[Call, Message], Awaitable[dict[str, Any]]]
ServerStream = Callable[[Call, Message, Client], AsyncGenerator[bytes]]
ClientStream = Callable[[Call, AsyncIterator[Message]], Awaitable[dict[str, Any]]]

UNARY: dict[str, Unary] = {
    "/process.Process/List": process.list_processes,
    "/process.Process/SendInput": process.send_input,
    "/process.Process/SendSignal": process.send_signal,
    "/process.Process/CloseStdin": process.close_stdin,
    "/process.Process/Update": process.update,
    "/filesystem.Filesystem/Stat": filesystem.stat,
    "/filesystem.Filesystem/ListDir": filesystem.list_dir,
    "/filesystem.Filesystem/MakeDir": filesystem.make_dir,
    "/filesystem.Filesystem/Move": filesystem.move,
    "/filesystem.Filesystem/Remove": filesystem.remove,
    "/filesystem.Filesystem/CreateWatcher": watch.create_watcher,
    "/filesystem.Filesystem/GetWatcherEvents": watch.get_watcher_events,
    "/filesystem.Filesystem/RemoveWatcher": watch.remove_watcher,
}
SERVER_STREAMS: dict[str, ServerStream] = {
    "/process.Process/Start": process.start,
    "/process.Process/Connect": process.connect,
    "/filesystem.Filesystem/WatchDir": watch.watch_dir,
}
CLIENT_STREAMS: dict[str, ClientStream] = {"/process.Process/StreamInput": process.stream_input}
TIMED_BY_THEMSELVES = frozenset({"/process.Process/Start"})
"""The time of the request is that of what it starts, and the node holds it."""


async def serve(request: Request, target: Destination) -> Response:
    """Of a sandbox that runs. A client learns of a token only that it is wrong."""
    path = request.scope["path"]
    try:
        if path == "/health":
            return _refused_method(request, "GET") or Response(status_code=204)
        if path == "/files":
            return await files.answer(request, target)
        token = request.headers.get(access.TOKEN_HEADER)
        if not services_of(request).e2b.opens_envd(target.sandbox_id, token):
            return errors.plain_error(401, "the access token is missing or not this sandbox's")
        admit(request, target)
        if path not in UNARY and path not in SERVER_STREAMS and path not in CLIENT_STREAMS:
            return errors.plain_error(404, f"there is no {path[:200]}")
        return _refused_method(request, "POST") or await _call(request, target, path)
    except BellglassError as error:
        context_of(request).error_code = error.code
        if not streams.runs(services_of(request), target.project_id, target.sandbox_id):
            return not_running(target.sandbox_id)
        return errors.file_error(error, request.query_params.get("username"))


async def _call(request: Request, target: Destination, path: str) -> Response:
    unary = path in UNARY
    wanted, given = connect.UNARY if unary else connect.STREAM, connect.media_type_of(request.headers)
    if given != wanted:
        return errors.json_answer(
            {"code": 415, "message": f"content-type {given[:80]!r} is not {wanted}"}, 415, {"accept-post": wanted}
        )
    try:
        connect.check_protocol(request.headers)
        call = call_of(request, services_of(request), target)
        if path in SERVER_STREAMS:
            limit_s = None if path in TIMED_BY_THEMSELVES else call.timeout_s
            return StreamAnswer(call, SERVER_STREAMS[path], await connect.one_message(request), limit_s=limit_s)
        async with asyncio.timeout(call.timeout_s):
            if unary:
                return errors.json_answer(await UNARY[path](call, await connect.read_unary(request)))
            value = await CLIENT_STREAMS[path](call, connect.messages(request))
        return Response(connect.envelope(errors.dump(value)) + connect.end_of_stream(), media_type=connect.STREAM)
    except TimeoutError:
        return _failed(request, ConnectError("deadline_exceeded", "the time of the request is over"), unary=unary)
    except ConnectError as error:
        return _failed(request, error, unary=unary)
    except BellglassError as error:
        if not streams.runs(services_of(request), target.project_id, target.sandbox_id):
            raise
        return _failed(request, connect_error(error, call.user), unary=unary)


def _failed(request: Request, error: ConnectError, *, unary: bool) -> Response:
    context_of(request).error_code = error.code
    if unary:
        return errors.unary_error(error)
    # The rest of what the client sends is not read.
    return Response(connect.end_of_stream(error), headers={"connection": "close"}, media_type=connect.STREAM)


def _refused_method(request: Request, *allowed: str) -> Response | None:
    if request.method in allowed:
        return None
    message = f"{request.method} is not allowed here"
    return errors.json_answer({"code": 405, "message": message}, 405, {"allow": ", ".join(allowed)})
