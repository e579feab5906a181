"""A terminal over a WebSocket.

Its messages are in MESSAGES. Under the same `client` a client learns how much of what he typed had been taken before.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from bellglass.errors import InvalidRequest, from_dict
from bellglass.link import LinkStream
from bellglass.model import Terminal
from bellglass.server.executions.service import in_our_words
from bellglass.server.executions.validate import check_size
from bellglass.server.http.validation import shown
from bellglass.server.http.websockets import DROPPED, Message, Socket, SocketClosed
from bellglass.wire import untrusted
from bellglass.wire.frames import MAX_DATA, encode
from bellglass.wire.output import InputType, OutputDecoder, OutputEvent, OutputType

MESSAGES = (
    Message("out", '{"type": "started", "execution", "offset", "known", "input", "total"}', "the first one: the output"
            " goes on at `offset`; `known`: so much of this `client`'s input was taken before, up to `input`"),
    Message("out", "bytes", "output"),
    Message("out", '{"type": "skipped", "offset", "bytes"}', "output that the log has lost"),
    Message("out", '{"type": "input", "offset", "total"}', "so many bytes that he typed lie in the terminal; `total`:"
            " with those of all others"),
    Message("out", '{"type": "exit", "execution"}', "it has ended; then a close with 1000"),
    Message("in", "bytes", "what is typed"),
    Message("in", '{"type": "resize", "cols", "rows"}', "the terminal has another size"),
)  # fmt: skip
LEAVES = (1000, 1001)
LEAVE_S = 2.0


async def relay(socket: Socket, stream: LinkStream) -> None:
    """Raises the node's errors, before the handshake or after it."""
    async with stream:
        with in_our_words():
            await stream.head()
        await socket.accept()
        try:
            await socket.both(_up(socket, stream), _down(socket, stream))
        except SocketClosed as closed:
            if (await _why(socket) if closed.code == DROPPED else closed.code) in LEAVES:
                await _leave(stream)
            raise


async def _why(socket: Socket) -> int:
    """The client's own word on a connection that could not be sent to any more: his close may lie behind what he
    typed."""
    try:
        async with asyncio.timeout(LEAVE_S):
            while True:
                await socket.receive()
    except SocketClosed as closed:
        return closed.code
    except TimeoutError:
        return DROPPED


async def _down(socket: Socket, stream: LinkStream) -> None:
    decoder = OutputDecoder()
    async for chunk in stream:
        for event in decoder.feed(chunk):
            if event.type is OutputType.ERROR:
                raise from_dict(event.value)
            if event.type is OutputType.KEEPALIVE:
                continue  # the connection has pings of its own
            await socket.send(event.data if event.value is None else _said(event))


def _said(event: OutputEvent) -> str:
    value = event.value or {}
    if event.type is OutputType.EXIT:
        value = {"execution": value}
    return json.dumps({"type": event.type.name.lower(), **value}, separators=(",", ":"))


async def _up(socket: Socket, stream: LinkStream) -> None:
    while True:
        message = await socket.receive()
        if isinstance(message, str):
            await stream.send(encode(InputType.RESIZE, 0, json.dumps(_size(message).to_json()).encode()))
            continue
        for start in range(0, len(message), MAX_DATA):
            await stream.send(encode(InputType.TYPED, 0, message[start : start + MAX_DATA]))


def _size(text: str) -> Terminal:
    """Of a resize message, the only one that there is. Raises InvalidRequest."""
    try:
        value: Any = untrusted.parse(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("type") != "resize":
        raise InvalidRequest(
            f"{shown(text)} is no message of a terminal",
            hint='{"type": "resize", "cols": 80, "rows": 24}, or what is typed as a binary message',
        )
    columns, rows = value.get("cols"), value.get("rows")
    if type(columns) is not int or type(rows) is not int:
        raise InvalidRequest("resize: `cols` and `rows` are to be whole numbers", details={"field": "cols"})
    size = Terminal(cols=columns, rows=rows)
    check_size(size)
    return size


async def _leave(stream: LinkStream) -> None:
    """He needs no place kept: the end of this side tells the node, which answers with its own."""
    await stream.end()
    try:
        async with asyncio.timeout(LEAVE_S):
            async for _ in stream:
                pass
    except TimeoutError:
        pass  # the reset that follows keeps his place for a minute, no worse
