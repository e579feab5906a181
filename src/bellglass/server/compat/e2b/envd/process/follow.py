"""Start and Connect: a process's output for as long as somebody reads it. It belongs to its sandbox, never to a reader:
one who hangs up leaves it running, and one whose node is restarted goes on where they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from bellglass.errors import InternalError, NodeUnavailable, NotFound, from_dict
from bellglass.link import LinkStream
from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.errors import ConnectError
from bellglass.server.compat.e2b.envd.process import events
from bellglass.server.compat.e2b.envd.streams import Client, Cut
from bellglass.wire.output import STREAM_NAMES, OutputDecoder, OutputEvent, OutputType

NODE_WAIT_S = 30.0
"""For a node that is restarted."""


class Follower:
    """`stream` is the first that was opened for it. `live`: it began behind what had been said before."""

    def __init__(self, call: Call, execution_id: str, stream: LinkStream, *, live: bool) -> None:
        self._call = call
        self._execution_id = execution_id
        self._stream = stream
        self._is_new = not live
        self._was_cut = False
        self._offset: int | None = None if live else 0
        self._terminal = False
        self._started = False
        self._ended = False

    async def messages(self, client: Client) -> AsyncGenerator[bytes]:
        """To the end of the process. Raises ConnectError, BellglassError, and Cut when the server goes down."""
        while True:
            client.when_gone(self._stream.cancel)
            decoder = OutputDecoder()
            try:
                async with self._stream as stream:
                    await self._head(stream)
                    async for chunk in stream:
                        if batch := b"".join([self._message(event) for event in decoder.feed(chunk)]):
                            yield batch
                        if self._ended:
                            return
            except NodeUnavailable:
                if client.gone or self._stream.peer_gone != "link":
                    raise
            if client.gone:
                return
            await self._attach_again()

    async def _head(self, stream: LinkStream) -> None:
        try:
            await stream.head()
        except NotFound as error:
            if not self._was_cut or self._started or not self._is_new:
                raise
            # A node keeps nothing of a start that waited for its turn, or that no agent had yet.
            raise NodeUnavailable("the node was restarted before the command was started; send it again") from error

    def _message(self, event: OutputEvent) -> bytes:
        if event.type in STREAM_NAMES:
            self._offset = event.offset + len(event.data)
            return events.data(events.channel_of(event.type, terminal=self._terminal), event.data)
        if event.type is OutputType.KEEPALIVE:
            return events.KEEPALIVE
        value = event.value or {}
        if event.type is OutputType.STARTED:
            return self._begin(value)
        if event.type is OutputType.SKIPPED:
            raise ConnectError(
                "data_loss", f"{value.get('bytes')} bytes of output came faster than they were read, and are gone"
            )
        if event.type is OutputType.ERROR:
            raise from_dict(value)
        self._ended = True
        if value.get("timed_out"):
            raise ConnectError("deadline_exceeded", "the command was killed at the end of its time")
        return events.end(value)

    def _begin(self, record: dict[str, object]) -> bytes:
        if self._started:
            return b""
        self._started = True
        self._terminal = record.get("terminal") is not None
        pid = record.get("pid")
        if not isinstance(pid, int):
            if record.get("state") == "exited":
                # A program that could not be executed: its line on stderr and its end are to come.
                return events.start(0)
            raise InternalError("the process has no pid")
        return events.start(pid)

    async def _attach_again(self) -> None:
        """Raises Cut when the server goes down, NodeUnavailable when the node does not come back."""
        self._was_cut = True
        services = self._call.services
        deadline = asyncio.get_running_loop().time() + NODE_WAIT_S
        while not services.events.feed.closed:
            if not await services.cluster.wait_up(deadline):
                raise NodeUnavailable("the node does not answer")
            with suppress(NodeUnavailable):  # the link had broken, and nobody had noticed yet
                self._stream = await services.executions.output(
                    self._call.project_id, self._call.sandbox_id, self._execution_id, "frames", self._call.request_id,
                    offset=self._offset or 0, follow=True, live=self._offset is None, holds=True,
                    keepalive_s=self._call.keepalive_s,
                )  # fmt: skip
                return
        raise Cut
