"""file.watch: what changes in a folder as lines of JSON, for as long as the call lasts."""

from __future__ import annotations

import asyncio

from bellglass.errors import AgentLost
from bellglass.link import LinkStream
from bellglass.node.app import Node
from bellglass.node.files.watch import WatchStream
from bellglass.node.operations.files import HOME, Request
from bellglass.node.params import Params
from bellglass.wire.frames import FrameError
from bellglass.wire.guest import FileFlag


async def watch(node: Node, params: Params, stream: LinkStream) -> None:
    """The head comes when the watch is set. The body in asks for syncs: 8 bytes each, which come back as `token`."""
    request = Request(node, params)
    flags = FileFlag.RECURSIVE if params.flag("recursive") else FileFlag(0)
    base = None if request.base == HOME else request.base
    operation = WatchStream(
        request.live, request.path(), user=request.user, owner=request.owner, base=base,
        flags=flags,
    )  # fmt: skip
    async with operation:
        try:
            await operation.ready()
            await stream.send_head({"result": {}})
            asking = asyncio.create_task(_ask(operation, stream))
            try:
                async for line in operation.lines():
                    await stream.send(line)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        except FrameError as error:
            raise AgentLost(f"the sandbox's agent told of changes that are none: {error}") from error
    await stream.end()


async def _ask(operation: WatchStream, stream: LinkStream) -> None:
    async for chunk in stream:
        await operation.send(chunk)
