"""The socket of its own on which the server takes what sandboxes ask, from the node's uid alone."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import cast

import structlog
import uvicorn

from bellglass.datadir import DataDir
from bellglass.server.http.hosted import Hosted

BACKLOG = 128
_UCRED = struct.Struct("3i")
log = structlog.get_logger("bellglass.identity")


class Listener:
    """`config`: uvicorn's, of the application for sandboxes."""

    def __init__(self, data: DataDir, config: uvicorn.Config) -> None:
        self._path = data.identity_socket
        self._node_uid = data.node_dir.stat().st_uid if data.node_dir.exists() else os.geteuid()
        self._config = config
        self._hosted: Hosted | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Replaces the socket that an earlier server left. Raises OSError."""
        self._hosted = Hosted(self._config)
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(self._path))
            self._path.chmod(0o666)  # its folder lets nobody pass but the node's group
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._server = await asyncio.get_running_loop().create_unix_server(self._connection, sock=listener)

    async def close(self, grace_s: float) -> None:
        """What is under way may take so long to end. Safe to repeat."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        if self._hosted is not None:
            await self._hosted.close(grace_s)

    def _connection(self) -> asyncio.Protocol:
        return _Admitting(self)

    def admits(self, transport: asyncio.BaseTransport) -> bool:
        peer = transport.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return bool(_UCRED.unpack(credentials)[1] == self._node_uid)

    def protocol(self) -> asyncio.Protocol:
        assert self._hosted is not None, "it was not started"
        return self._hosted.protocol()


class _Admitting(asyncio.Protocol):
    """Looks at who connects before a byte is read."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._listener.admits(transport):
            log.warning("refused: the peer's uid is not the node's")
            cast(asyncio.Transport, transport).abort()
            return
        protocol = self._listener.protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
