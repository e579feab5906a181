"""port.dial: a connection to a port of a sandbox, its bytes as the bodies of the call."""

from __future__ import annotations

import asyncio

from bellglass.link import LinkStream
from bellglass.node.app import Node
from bellglass.node.params import Params
from bellglass.node.ports.dial import DialStream


async def dial(node: Node, params: Params, stream: LinkStream) -> None:
    """The head comes when the program has taken the connection. Either body ends by itself; a reset of the call by
    either side is the connection's."""
    live = node.sandboxes.live(params.text("sandbox_id", limit=64), params.integer("generation"))
    async with DialStream(live, params.integer("port", least=1, most=65535)) as connection:
        await stream.send_head({"result": {}})
        upwards = asyncio.create_task(_feed(connection, stream))
        try:
            async for chunk in connection.chunks():
                await stream.send(chunk)
            await stream.end()
            await asyncio.gather(upwards, connection.over())  # a reset after the program's end is told too
        finally:
            upwards.cancel()
            await asyncio.gather(upwards, return_exceptions=True)


async def _feed(connection: DialStream, stream: LinkStream) -> None:
    async for chunk in stream:
        await connection.send(chunk)
    connection.end()
