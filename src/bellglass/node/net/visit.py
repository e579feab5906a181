"""One request of a sandbox to the API: read, checked, carried to the server, answered."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from bellglass import http1
from bellglass.egress.proxy import head
from bellglass.errors import (
    BellglassError,
    MethodNotAllowed,
    NodeUnavailable,
    RequestError,
    TooLarge,
    Unauthorized,
)
from bellglass.ids import new_request_id

HOST, PORT = "198.18.0.1", 80
MAX_HEAD_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024
"""All that a sandbox may send is a small JSON document. It is held in memory, of 16 connections a sandbox."""
HEAD_S, BODY_S = 10.0, 10.0
ANSWER_S = 60.0
SILENCE_S = 60.0
"""Longest pause of an answer, and longest wait for a reader."""
LONGEST_S = 180.0
"""Of all together."""
LINGER_S, LINGER_PIECES = 1.0, 16
PIECE = 64 * 1024
MAX_PIECES = 128
"""In which a request may come: each costs the node's loop a turn, even if it is a single byte."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
READS = ("GET", "HEAD")
_PATH = re.compile(r"/v1(?:/[A-Za-z0-9._~-]+)+")
_QUERY = re.compile(r"[\x21-\x7e]*")
_VALUE = re.compile(rb"[\x20-\x7e]{1,256}")


class Upstream(NamedTuple):
    """`word(now_unix)` is the credential that says who calls."""

    path: Path
    at_once: asyncio.Semaphore
    word: Callable[[float], str]


class Call(NamedTuple):
    method: str
    target: str
    minor: int
    headers: http1.Headers
    length: int


class Visit:
    """What it has cost is known after `run`: in how many pieces the request came, how long the answer was, and whether
    the server has written something down (a change, or that it refused one)."""

    def __init__(self, connection: socket.socket, upstream: Upstream, marker: str) -> None:
        self._connection = connection
        self._upstream = upstream
        self._marker = marker.encode()
        self._loop = asyncio.get_running_loop()
        self.pieces = self.answered_bytes = 0
        self.is_written = False

    async def run(self) -> None:
        """Raises OSError for a connection that breaks."""
        self._connection.setblocking(False)
        try:
            async with asyncio.timeout(LONGEST_S):
                await self._answer()
        except TimeoutError:
            return  # cut: half of an answer must not look like all of it
        await self._end()

    async def _answer(self) -> None:
        method = ""
        try:
            raw, rest = await self._read_head()
            if not raw:
                return
            call = parse(raw)
            method = call.method
            self._check_token(call)
            check(call)
            body = await self._read_body(call, rest)
            await self._carry(call, body)
        except BellglassError as error:
            await self._send(error_answer(error, with_body=method != "HEAD"))

    async def _read_head(self) -> tuple[bytes, bytes]:
        """The head with its empty line, and what came behind it. Nothing for a connection that never said a word."""
        data = b""
        try:
            async with asyncio.timeout(HEAD_S):
                while (end := data.find(http1.END)) < 0:
                    if len(data) > MAX_HEAD_BYTES:
                        raise RequestError(f"the head is over {MAX_HEAD_BYTES} bytes")
                    piece = await self._receive(MAX_HEAD_BYTES)
                    if not piece:
                        return b"", b""
                    data += piece
        except TimeoutError:
            raise RequestError(f"no whole head came within {HEAD_S:g} s") from None
        end += len(http1.END)
        if end > MAX_HEAD_BYTES:
            raise RequestError(f"the head is over {MAX_HEAD_BYTES} bytes")
        return data[:end], data[end:]

    def _check_token(self, call: Call) -> None:
        given = http1.values(call.headers, b"authorization")
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer" or token.strip() != self._marker:
            raise Unauthorized(
                "that is not the token of a sandbox",
                hint="inside of a sandbox send `Authorization: Bearer $BELLGLASS_TOKEN`",
            )

    async def _read_body(self, call: Call, rest: bytes) -> bytes:
        if call.length > MAX_BODY_BYTES:
            raise TooLarge(
                f"a body of {call.length} bytes is over the limit of {MAX_BODY_BYTES}",
                details={"limit_bytes": MAX_BODY_BYTES},
            )
        # One of HTTP/1.0 would take it for the answer.
        if len(rest) < call.length and call.minor and http1.find(call.headers, b"expect") is not None:
            await self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = rest[: call.length]
        try:
            async with asyncio.timeout(BODY_S):
                while len(body) < call.length:
                    piece = await self._receive(call.length - len(body))
                    if not piece:
                        raise RequestError("the body ended before its length")
                    body += piece
        except TimeoutError:
            raise RequestError(f"no whole body came within {BODY_S:g} s") from None
        return body

    async def _carry(self, call: Call, body: bytes) -> None:
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with socket.socket(socket.AF_UNIX, kind) as server:
            async with self._upstream.at_once:
                piece = await self._ask(server, self._anew(call, body))
            if not piece:
                raise _unreachable()
            self.is_written = call.method not in READS or piece[9:12] in (b"401", b"403", b"404")
            while piece:
                self.answered_bytes += len(piece)
                await self._send(piece)
                async with asyncio.timeout(SILENCE_S):
                    piece = await self._loop.sock_recv(server, PIECE)

    async def _ask(self, server: socket.socket, request: bytes) -> bytes:
        """The first bytes of the answer."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._loop.sock_connect(server, str(self._upstream.path))
                await self._loop.sock_sendall(server, request)
                return await self._loop.sock_recv(server, PIECE)
        except (OSError, TimeoutError):
            raise _unreachable() from None

    def _anew(self, call: Call, body: bytes) -> bytes:
        """Of what the sandbox sent: method, target, body, and the forms that it wants and sends."""
        fields = [
            ("host", b"bellglass"),
            ("authorization", f"Bearer {self._upstream.word(time.time())}".encode()),
            ("connection", b"close"),
        ]
        for name in ("accept", "content-type"):
            given = http1.values(call.headers, name.encode())
            if len(given) == 1 and _VALUE.fullmatch(given[0]):
                fields.append((name, given[0]))
        if body or call.method not in READS:
            fields.append(("content-length", b"%d" % len(body)))
        lines = [f"{call.method} {call.target} HTTP/1.1".encode()]
        lines += [name.encode() + b": " + value for name, value in fields]
        return b"\r\n".join(lines) + http1.END + body

    async def _receive(self, most: int) -> bytes:
        self.pieces += 1
        if self.pieces > MAX_PIECES:
            raise RequestError(f"the request came in more than {MAX_PIECES} pieces")
        return await self._loop.sock_recv(self._connection, most)

    async def _send(self, data: bytes) -> None:
        async with asyncio.timeout(SILENCE_S):
            await self._loop.sock_sendall(self._connection, data)

    async def _end(self) -> None:
        """A close with bytes unread would be a reset, which may overtake the answer."""
        with suppress(OSError, TimeoutError):
            self._connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LINGER_S):
                for _ in range(LINGER_PIECES):
                    if not await self._loop.sock_recv(self._connection, PIECE):
                        return


def parse(raw: bytes) -> Call:
    """Raises RequestError for what two readers could read differently, or for another host."""
    try:
        read, length, _ = head.request(raw, HOST, PORT)
    except http1.BadHead as error:
        what = f"another host, {error.host!r}" if isinstance(error, head.OtherHost) else str(error)
        raise RequestError(f"that is no request for http://{HOST}: {what}") from None
    return Call(read.method.decode("latin-1"), read.target.decode("latin-1"), read.minor, read.headers, length)


def check(call: Call) -> None:
    """Raises RequestError, MethodNotAllowed."""
    if call.method not in METHODS:
        allowed = ", ".join(METHODS)
        raise MethodNotAllowed(f"{call.method[:32]!r} is not allowed here", hint=f"allowed: {allowed}")
    path, _, query = call.target.partition("?")
    segments = path.split("/")
    if not _PATH.fullmatch(path) or "." in segments or ".." in segments or not _QUERY.fullmatch(query):
        raise RequestError(
            f"{call.target[:80]!r} is no path of the API",
            hint="such as /v1/me; without escapes, empty segments and dots",
        )
    if call.length == http1.CHUNKED:
        raise RequestError("a body in chunks is not taken here", hint="send it with its Content-Length")


def error_answer(error: BellglassError, *, with_body: bool = True) -> bytes:
    error.request_id = error.request_id or new_request_id()
    body = json.dumps(error.to_dict(), separators=(",", ":"), default=repr).encode("ascii")
    fields = ["content-type: application/json", f"content-length: {len(body)}", f"x-request-id: {error.request_id}"]
    if error.status == HTTPStatus.UNAUTHORIZED:
        fields.append('www-authenticate: Bearer realm="bellglass"')
    if error.retryable:
        fields.append("retry-after: 1")
    first = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"
    head = "\r\n".join([first, *fields, "connection: close"]) + "\r\n\r\n"
    return head.encode("ascii") + (body if with_body else b"")


def _unreachable() -> NodeUnavailable:
    return NodeUnavailable("the API can't be reached from this node at the moment", hint="retry in a moment")
