"""The Connect protocol with its JSON codec: unary calls, and streams of enveloped messages in either direction.

An envelope is one byte of flags, the length in four (big-endian), and the message. The last one of an answer has
END_STREAM and says how it ended; an answer without it was cut, and clients take that for a lost connection.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers

from bellglass.server.compat.e2b.envd.errors import ConnectError
from bellglass.server.compat.e2b.envd.messages import Message, parse
from bellglass.server.http.bodies import content_length

UNARY = "application/json"
STREAM = "application/connect+json"
COMPRESSED = 1
END_STREAM = 2
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Of a request's; ours are far smaller."""
_HEAD = struct.Struct(">BI")
_TIMEOUT = re.compile(r"[0-9]{1,10}", re.ASCII)


def envelope(message: bytes, flags: int = 0) -> bytes:
    return _HEAD.pack(flags, len(message)) + message


def end_of_stream(error: ConnectError | None = None) -> bytes:
    value: dict[str, Any] = {} if error is None else {"error": {"code": error.code, "message": error.message}}
    return envelope(json.dumps(value, separators=(",", ":")).encode("ascii"), END_STREAM)


def timeout_of(headers: Headers) -> float | None:
    """Seconds of Connect-Timeout-Ms; None: no limit. Raises ConnectError."""
    given = headers.get("connect-timeout-ms")
    if given is None:
        return None
    if not _TIMEOUT.fullmatch(given):
        raise ConnectError("invalid_argument", f"Connect-Timeout-Ms: {given[:40]!r} is no number of up to 10 digits")
    return int(given) / 1000 or None


def check_protocol(headers: Headers) -> None:
    """Raises ConnectError for what can't be read."""
    version = headers.get("connect-protocol-version", "1")
    if version != "1":
        raise ConnectError("invalid_argument", f"Connect-Protocol-Version: {version[:40]!r} is not 1")
    for name in ("content-encoding", "connect-content-encoding"):
        encoding = headers.get(name, "identity")
        if encoding not in ("identity", ""):
            raise ConnectError("unimplemented", f"compression {encoding[:40]!r} is not supported: send identity")


def media_type_of(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_unary(request: Request) -> Message:
    """Raises ConnectError."""
    declared = content_length(request)
    if declared is not None and declared > MAX_MESSAGE_BYTES:
        raise _too_large(declared)
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_MESSAGE_BYTES:
            raise _too_large(size)
        parts.append(chunk)
    return parse(b"".join(parts) or b"{}")


async def messages(request: Request) -> AsyncIterator[Message]:
    """Of a request's stream, each as soon as it is there. Raises ConnectError, ClientDisconnect when it is cut."""
    buffer = bytearray()
    async for chunk in request.stream():
        buffer += chunk
        while len(buffer) >= _HEAD.size:
            flags, length = _HEAD.unpack_from(buffer)
            if length > MAX_MESSAGE_BYTES:
                raise _too_large(length)
            if flags:
                raise _bad_flags(flags)
            end = _HEAD.size + length
            if len(buffer) < end:
                break
            raw = bytes(buffer[_HEAD.size : end])
            del buffer[:end]
            yield parse(raw or b"{}")
    if buffer:
        raise ConnectError("invalid_argument", f"the last message is cut off after {len(buffer)} bytes")


async def one_message(request: Request) -> Message:
    """The only one of a request whose answer is a stream. Raises ConnectError."""
    found: Message | None = None
    async for message in messages(request):
        if found is not None:
            raise ConnectError("invalid_argument", "more than one message")
        found = message
    if found is None:
        raise ConnectError("invalid_argument", "no message")
    return found


def _bad_flags(flags: int) -> ConnectError:
    if flags & COMPRESSED:
        return ConnectError("internal", "a compressed message without an encoding")
    return ConnectError("invalid_argument", f"flags {flags} of a message")


def _too_large(size: int) -> ConnectError:
    return ConnectError("resource_exhausted", f"a message of {size} bytes; the most is {MAX_MESSAGE_BYTES}")
