"""Answers that are streams of messages, and how they end.

A stream that ends by itself, well or with an error, closes with END_STREAM. One whose sandbox went away is cut instead:
its clients then ask /health, and take the death from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bellglass.errors import BellglassError, FileMissing, NoCapacity, NotFound, SandboxGone, ServiceError
from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.connect import STREAM, end_of_stream
from bellglass.server.compat.e2b.envd.errors import ConnectError, connect_error
from bellglass.server.compat.e2b.envd.messages import Message
from bellglass.server.sandboxes import guard
from bellglass.server.services import Services

GONE_WITHIN_S = 5.0
"""A node tells the end of a sandbox so much later than its streams break, at most."""
ENDED_WITHIN_S = 60.0
"""Where it has said so on the stream already, whatever keeps its journal."""


class Cut(Exception):
    """The stream is to end without an end."""


class Client:
    """Whoever reads the answer. What a stream waits for is to be told when they hang up."""

    def __init__(self) -> None:
        self.gone = False
        self._then: Callable[[], object] | None = None

    def when_gone(self, then: Callable[[], object]) -> None:
        """Replaces what was said before."""
        self._then = then
        if self.gone:
            then()

    def hang_up(self) -> None:
        self.gone = True
        if self._then is not None:
            self._then()


Messages = Callable[[Call, Message, Client], AsyncGenerator[bytes]]
"""Gives enveloped messages, as many at a time as there are. Raises BellglassError, ConnectError and Cut."""


class StreamAnswer(Response):
    """`limit_s`: the whole of it ends with deadline_exceeded then."""

    def __init__(self, call: Call, messages: Messages, message: Message, *, limit_s: float | None = None) -> None:
        super().__init__()
        self._call = call
        self._messages = messages
        self._message = message
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = Client()
        watcher = asyncio.create_task(_watch(receive, client), name="envd:watch")
        try:
            await self._answer(send, client)
        finally:
            watcher.cancel()

    async def _answer(self, send: Send, client: Client) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", STREAM.encode("ascii"))]}
        )
        try:
            async with (
                asyncio.timeout(self._limit_s),
                aclosing(self._messages(self._call, self._message, client)) as batches,
            ):
                async for batch in batches:
                    await send({"type": "http.response.body", "body": batch, "more_body": True})
            end = end_of_stream()
        except TimeoutError:
            end = self._failed(ConnectError("deadline_exceeded", "the time of the request is over"))
        except ConnectError as error:
            end = self._failed(error)
        except BellglassError as error:
            if client.gone or await is_over(self._call, error):
                return
            end = self._failed(connect_error(error, self._call.user))
        except Cut:
            return
        await send({"type": "http.response.body", "body": end, "more_body": False})

    def _failed(self, error: ConnectError) -> bytes:
        self._call.context.error_code = error.code
        return end_of_stream(error)


async def _watch(receive: Receive, client: Client) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of a body that nobody wants
    client.hang_up()


def runs(services: Services, project_id: str, sandbox_id: str) -> bool:
    """Whether the sandbox is there, as far as the database knows."""
    try:
        guard.running(services.reader, project_id, sandbox_id)
    except BellglassError:
        return False
    return True


async def is_over(call: Call, error: BellglassError) -> bool:
    """Of a stream that broke with `error`: whether its sandbox went away, which the node tells a moment later. True as
    well when this server goes down."""
    if not isinstance(error, (ServiceError, SandboxGone, NotFound)) or isinstance(error, (FileMissing, NoCapacity)):
        return False
    limit_s = ENDED_WITHIN_S if isinstance(error, SandboxGone) else GONE_WITHIN_S
    feed = call.services.events.feed
    with feed.following():
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    grown = feed.grown()
                    if feed.closed or not runs(call.services, call.project_id, call.sandbox_id):
                        return True
                    await grown.wait()
        except TimeoutError:
            return False
