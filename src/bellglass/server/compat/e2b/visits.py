"""E2B's clients at the listener of published ports, where they name a port as `<port>-<id>.<domain>`.

What E2B's own programs would answer is passed on to the API, over a pair of sockets inside this process; other ports
are visited like any published one, and refusals are said as E2B's proxy says them.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Collection
from typing import Any

import uvicorn

from bellglass.errors import BellglassError, NodeUnavailable, NotFound, PortUnreachable, SandboxGone, Unauthorized
from bellglass.http1 import Request, without
from bellglass.server.compat.e2b import errors
from bellglass.server.compat.e2b.tokens import Tokens
from bellglass.server.http.hosted import Hosted
from bellglass.server.previews import pages
from bellglass.server.previews.origins import Named

_NAMES = (b"e2b-sandbox-id", b"e2b-sandbox-port")
PIECE_BYTES = 64 * 1024


class Visits:
    """`config`: uvicorn's, of the whole API. `ports`: those that are answered by it."""

    def __init__(self, config: uvicorn.Config, tokens: Tokens, ports: Collection[int]) -> None:
        self._hosted = Hosted(config)
        self._tokens = tokens
        self._ports = ports

    async def close(self, grace_s: float) -> None:
        """What is under way may take so long to end."""
        await self._hosted.close(grace_s)

    # --- for the listener -------------------------------------------------------------------------------

    def serves(self, named: Named) -> bool:
        return named.is_turned and named.port in self._ports

    def inward(self, named: Named, request: Request) -> Request:
        told = [(_NAMES[0], str(named.sandbox_id).encode()), (_NAMES[1], str(named.port).encode())]
        return request._replace(headers=[*without(request.headers, _NAMES), *told])

    async def connect(self) -> Inner:
        """Raises NodeUnavailable when the server goes down."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        try:
            await loop.connect_accepted_socket(self._hosted.protocol, theirs)
            return Inner(*await asyncio.open_connection(sock=ours, limit=PIECE_BYTES))
        except OSError as error:
            ours.close()
            theirs.close()
            raise NodeUnavailable(f"the server takes no connection: {error}", hint="retry in a moment") from error

    def opens(self, sandbox_id: str, token: str) -> bool:
        return self._tokens.opens_ports(sandbox_id, token)

    def error(self, named: Named, error: BellglassError, request: Request) -> pages.Parts | None:
        """Programs read JSON; people get the page that others get, with a title of its own for a closed port."""
        is_closed = isinstance(error, PortUnreachable) and error.details.get("reason") == "refused"
        if _is_browser(request):
            return pages.in_html(502, "Closed Port Error", errors.PORT_CLOSED, request) if is_closed else None
        shape: dict[str, Any] = {"sandboxId": named.sandbox_id, "message": str(error), "code": errors.status_of(error)}
        if isinstance(error, (NotFound, SandboxGone)):
            shape |= {"message": errors.NOT_RUNNING, "code": 502}
        elif is_closed:
            shape |= {"message": errors.PORT_CLOSED, "port": named.port, "code": 502}
        elif isinstance(error, Unauthorized):
            shape |= {"message": "the port needs E2b-Traffic-Access-Token", "code": 403}
        return pages.in_json(int(shape["code"]), json.dumps(shape).encode("ascii"), request)


def _is_browser(request: Request) -> bool:
    """By what it accepts, or by its name where it takes anything."""
    accept = (request.get(b"accept") or b"*/*").lower()
    agent = (request.get(b"user-agent") or b"").lower()
    return b"text/html" in accept or (agent.startswith(b"mozilla/") and b"json" not in accept)


class Inner:
    """A connection to the API, as the listener uses one to a program."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise _cut() from error

    async def end(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def cancel(self) -> None:
        self._writer.transport.abort()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self._reader.read(PIECE_BYTES):
                yield piece
        except OSError as error:
            raise _cut() from error


def _cut() -> NodeUnavailable:
    return NodeUnavailable("the answer was cut", hint="retry in a moment")
