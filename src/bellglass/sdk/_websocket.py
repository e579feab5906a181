"""The client's half of RFC 6455 without IO: the handshake's headers, frames out, messages in."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from dataclasses import dataclass

from bellglass.errors import BellglassError, ClientError, ConnectionFailed, StreamInterrupted, from_dict

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL, GOING_AWAY, RESTARTING, DROPPED = 1000, 1001, 1012, 1006
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_SENT_BYTES = 512 * 1024
"""A longer message is for the caller to split: the server refuses those over 1 MiB."""
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def new_key() -> str:
    return base64.b64encode(os.urandom(16)).decode()


def handshake_headers(key: str) -> dict[str, str]:
    return {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": key,
    }


def check_handshake(status: int, accept: str | None, key: str) -> None:
    """Raises ClientError when that was no WebSocket's answer."""
    wanted = base64.b64encode(hashlib.sha1(key.encode() + _ACCEPT, usedforsecurity=False).digest()).decode()
    if status != 101 or accept != wanted:
        raise ClientError(
            f"the server answered {status} to a WebSocket",
            hint="does a proxy in between pass WebSockets on? is the server of this release?",
        )


def encode(opcode: int, payload: bytes) -> bytes:
    """A whole message as one masked frame."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 65536:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    mask = os.urandom(4)
    stream = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return head + mask + (int.from_bytes(payload, "big") ^ stream).to_bytes(size, "big")


def encode_close(code: int) -> bytes:
    return encode(CLOSE, struct.pack("!H", code))


@dataclass(frozen=True, slots=True)
class Message:
    """`opcode` is TEXT, BINARY, PING or CLOSE; of a CLOSE `code` and `reason` count."""

    opcode: int
    payload: bytes = b""
    code: int = 0
    reason: str = ""


class Reader:
    """Bytes in, messages out. Raises ConnectionFailed when they are no frames of a server."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parts = bytearray()
        self._opcode = 0

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages = []
        while (frame := self._frame()) is not None:
            message = self._take(*frame)
            if message is not None:
                messages.append(message)
        return messages

    def _frame(self) -> tuple[bool, int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, at = buffer[1] & 0x7F, 2
        if buffer[0] & 0x70 or buffer[1] & 0x80:
            raise _broken("reserved bits, or a mask")
        if size >= 126:
            width = 2 if size == 126 else 8
            at += width
            if len(buffer) < at:
                return None
            size = int.from_bytes(buffer[2:at], "big")
        if size > MAX_MESSAGE_BYTES:
            raise _broken(f"a frame of {size} bytes")
        if len(buffer) < at + size:
            return None
        final, opcode, payload = bool(buffer[0] & 0x80), buffer[0] & 0x0F, bytes(buffer[at : at + size])
        del buffer[: at + size]
        return final, opcode, payload

    def _take(self, final: bool, opcode: int, payload: bytes) -> Message | None:
        if opcode >= CLOSE:
            if not final or len(payload) > 125 or opcode > PONG:
                raise _broken(f"a control frame {opcode} of {len(payload)} bytes")
            if opcode != CLOSE:
                return Message(opcode, payload) if opcode == PING else None
            code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
            return Message(CLOSE, code=code, reason=payload[2:].decode("utf-8", "replace"))
        if (opcode == CONTINUATION) != (self._opcode != 0) or opcode > BINARY:
            raise _broken(f"a frame {opcode} out of order")
        self._opcode = self._opcode or opcode
        self._parts += payload
        if len(self._parts) > MAX_MESSAGE_BYTES:
            raise _broken(f"a message over {MAX_MESSAGE_BYTES} bytes")
        if not final:
            return None
        message = Message(self._opcode, bytes(self._parts))
        self._opcode = 0
        self._parts.clear()
        return message


def told_error(text: str) -> BellglassError | None:
    """What a text message says of an error that ends the connection."""
    if not text.startswith('{"type":"error"'):
        return None
    try:
        return from_dict(json.loads(text))
    except ValueError:
        return None


def close_error(code: int, reason: str) -> BellglassError | None:
    """None for an ordinary close."""
    if code in (NORMAL, 1005):
        return None
    if code in (GOING_AWAY, RESTARTING):
        return StreamInterrupted("the server is going down", hint="connect again in a moment")
    if code == DROPPED:
        return StreamInterrupted("the connection broke", hint="connect again")
    return StreamInterrupted(f"the server closed the connection with {code} {reason}".rstrip(), hint="connect again")


def _broken(what: str) -> ConnectionFailed:
    return ConnectionFailed(f"what came is no WebSocket: {what}", details={"stage": "exchange"})
