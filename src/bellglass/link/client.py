"""The dialing end of a link: the server's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bellglass.errors import NodeUnavailable
from bellglass.link.connection import Connection, Identity
from bellglass.link.stream import LinkStream
from bellglass.wire.frames import FrameError

CONNECT_TIMEOUT_S = 5.0


class LinkClient:
    """A live link. Once `closed` is set it is of no more use; dial again with `connect`."""

    def __init__(self, connection: Connection, peer: dict[str, Any]) -> None:
        self.peer = peer
        self.closed = connection.closed
        self._connection = connection

    @classmethod
    async def connect(cls, path: Path, *, secret: str, installation: str, role: str = "server") -> LinkClient:
        """Dial and exchange HELLOs. Raises NodeUnavailable with the reason, VersionMismatch."""
        loop = asyncio.get_running_loop()
        identity = Identity(role, installation, secret)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_unix_connection(lambda: Connection(identity, None), str(path))
                try:
                    peer = await asyncio.shield(connection.ready)
                except BaseException:
                    connection.close()
                    raise
        except (OSError, TimeoutError, FrameError) as error:
            raise NodeUnavailable(
                f"no link to the node at {path}: {error or type(error).__name__}",
                hint="`bellglass status` shows whether the node runs",
            ) from error
        return cls(connection, peer)

    async def open(
        self, op: str, params: dict[str, Any], *, request_id: str | None = None, body: bool = True
    ) -> LinkStream:
        """Start a call. With `body=False` nothing can be sent after it."""
        return self._connection.open(op, params, request_id=request_id, end=not body)

    async def call(self, op: str, params: dict[str, Any], *, request_id: str | None = None) -> dict[str, Any]:
        """A call without bodies: the `result` of its head. Raises the error that the node answered with."""
        async with await self.open(op, params, request_id=request_id, body=False) as stream:
            head = await stream.head()
        return head.get("result") or {}

    async def close(self) -> None:
        self._connection.close()
        await self.closed.wait()
