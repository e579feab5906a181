"""The client's side of a TLS connection as far as it is readable: each hello asks for the name that was dialled.

What goes on are the bytes that were read, not what the client may have put in their place since.
"""

from __future__ import annotations

import socket
from time import monotonic

from bellglass.egress.loop import Loop
from bellglass.egress.proxy import relay, tls
from bellglass.egress.proxy.outcomes import Refused
from bellglass.egress.proxy.relay import Counter, Ended

HELLO_TIMEOUT_S = 5.0


async def look(loop: Loop, client: socket.socket, name: str, deadline: float | None) -> tuple[tls.Hello, bytes]:
    """A hello for this name and the bytes that say so, still not taken. Without a deadline it counts from the first
    byte. Raises Refused, Ended."""
    needed = tls.RECORD_HEADER
    seen = -1
    reading = tls.Reading()
    try:
        while True:
            try:
                found = relay.peek(client, tls.MAX_LOOK_BYTES)
            except BlockingIOError:
                await loop.readable(client, deadline)
                continue
            if not found:
                raise Ended if seen < 0 else tls.BadHello("cut off")
            if len(found) == seen or (len(found) < needed and seen >= 0):
                seen = len(found)
                if relay.at_end(client):
                    raise tls.BadHello("cut off")
                deadline = deadline or monotonic() + HELLO_TIMEOUT_S
                await loop.readable(client, deadline)
                continue
            seen = len(found)
            hello = reading.go_on(found)
            if isinstance(hello, tls.Hello):
                # Once more as a whole: it was read piece by piece, and each may have changed since.
                whole = bytes(found[: hello.length])
                hello = tls.whole(whole)
                break
            needed = hello
    except tls.NoServerName as error:
        raise Refused("no_sni") from error
    except (tls.BadHello, TimeoutError) as error:
        raise Refused("bad_hello") from error
    if hello.name != name:
        raise Refused("sni_mismatch", host=hello.name)
    return hello, whole


async def send(loop: Loop, client: socket.socket, upstream: socket.socket, name: str, sent: Counter) -> None:
    """All that the client sends. A server that wants another key share has it send a second hello, as readable as the
    first. Before it may stand a change of cipher spec, warnings, and data where the first one announced that. Records
    of other kinds are refused: some servers pass over them, and read the hello behind. Raises Refused, Ended, OSError.
    """
    hello, whole = await look(loop, client, name, None)
    await relay.pass_on(loop, client, upstream, whole, sent)
    passed = {tls.CHANGE_CIPHER_SPEC, tls.ALERT} | ({tls.APPLICATION_DATA} if hello.early_data else set())
    while True:
        await loop.breathe()
        try:
            start = bytes(relay.peek(client, tls.RECORD_HEADER + 1))
        except BlockingIOError:
            await loop.readable(client)
            continue
        if not start:
            return
        if start[0] not in (tls.HANDSHAKE, *passed):
            if start[0] != tls.APPLICATION_DATA:
                raise Refused("bad_hello")
            break
        if len(start) <= tls.RECORD_HEADER:
            if relay.at_end(client):
                break
            await loop.readable(client)
            continue
        size = int.from_bytes(start[3:5], "big")
        if start[0] in passed:
            await relay.pass_on(loop, client, upstream, start[: tls.RECORD_HEADER], sent, more=size > 0)
            await relay.pump(loop, client, upstream, sent, size)
            continue
        if start[5] == tls.CLIENT_HELLO or not size:
            _, start = await look(loop, client, name, None)
        break
    await relay.pass_on(loop, client, upstream, start, sent)
    await relay.pump(loop, client, upstream, sent)
