"""The listening end of a link: the node's. Each call runs as a task of its own.

The task is cancelled when the peer resets the stream or the link breaks; `stream.peer_gone` tells which, and a handler
that must go on (a waiting execution when the server dies) catches the cancellation.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bellglass.errors import BellglassError, InternalError
from bellglass.link.connection import Connection, Identity
from bellglass.link.stream import LinkStream

log = logging.getLogger("bellglass.link")
Handler = Callable[[str, dict[str, Any], LinkStream], Awaitable[None]]
_UCRED = struct.Struct("3i")


class LinkServer:
    """Listens on a unix socket and runs `handler(op, params, stream)` for each call.

    A handler answers with `stream.send_head`, then perhaps a body, then `stream.end`. A BellglassError that it
    raises becomes the call's error; any other exception is logged and becomes `internal`. A peer whose uid is not in
    `allowed_uids` (None: any that can open the socket) is turned away before a byte is read.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        secret: str,
        installation: str,
        role: str = "node",
        allowed_uids: set[int] | None = None,
    ) -> None:
        self._handler = handler
        self._identity = Identity(role, installation, secret)
        self._allowed_uids = allowed_uids
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, path: Path, *, group: int | None = None, mode: int = 0o660) -> None:
        """Bind, replacing a stale socket of the same name."""
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(path))
            if group is not None:
                os.chown(path, -1, group)
            path.chmod(mode)
            listener.listen(64)
        except BaseException:
            listener.close()
            raise
        # The reference must be kept: uvloop closes the listener of a server that nobody holds.
        self._server = await asyncio.get_running_loop().create_unix_server(self._connection, sock=listener)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in connections:
            await connection.closed.wait()

    def _connection(self) -> Connection:
        return _Accepted(self)

    def admit(self, transport: asyncio.BaseTransport) -> bool:
        if self._allowed_uids is None:
            return True
        peer = transport.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return _UCRED.unpack(credentials)[1] in self._allowed_uids

    def start(self, stream: LinkStream, params: dict[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(stream, params), name=f"link:{stream.op}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        stream.on_peer_gone = task.cancel

    async def _run(self, stream: LinkStream, params: dict[str, Any]) -> None:
        try:
            await self._handler(stream.op, params, stream)
            if not stream.head_sent:
                await stream.reset(InternalError(f"{stream.op} gave no answer", request_id=stream.request_id))
            else:
                await stream.end()
        except BellglassError as error:
            await stream.reset(error)
        except asyncio.CancelledError:
            await stream.reset()
            if stream.peer_gone is None:
                raise  # the server is being closed
        except Exception:  # the border of a request: logged, told, and the node goes on
            log.exception("%s failed (request %s)", stream.op, stream.request_id)
            await stream.reset(InternalError(f"{stream.op} failed on the node", request_id=stream.request_id))


class _Accepted(Connection):
    def __init__(self, server: LinkServer) -> None:
        super().__init__(server._identity, server.start)
        self._owner = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._owner._connections.add(self)
        if not self._owner.admit(transport):
            log.warning("link refused: the peer's uid is not the server's")
            transport.abort()  # type: ignore[attr-defined]
            return
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner._connections.discard(self)
        super().connection_lost(exc)
