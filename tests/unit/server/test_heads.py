"""Heads of requests are read before any key: their length and their time have a limit."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

import pytest
from server_harness import ADMIN, Harness, dial

from bellglass.server import serving
from bellglass.server.http import rests


def push(connection: socket.socket, pieces: Iterator[bytes]) -> int:
    """How much went out before the server hung up."""
    sent = 0
    try:
        for piece in pieces:
            connection.sendall(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET /v1/health HTTP/1.1\r\nhost: x\r\nlong: ", b"400"),
        (b"GET /", b"400"),
        (b"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nlong: ", b"401"),
    ],
)
def test_a_head_without_end_is_answered_and_cut_off(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, start: bytes, status: bytes
) -> None:
    monkeypatch.setattr(rests, "REST_S", 0.3)
    with dial(harness) as connection:
        connection.sendall(start)
        assert push(connection, itertools.repeat(b"a" * 65536, 16)) == 2**20
        assert connection.recv(4096).startswith(b"HTTP/1.1 " + status)
        push(connection, itertools.repeat(b"a" * 65536))


def test_bodies_in_small_chunks_are_no_heads(harness: Harness) -> None:
    body = b'{"project": "p9"' + b" " * 90_000 + b"}"
    with dial(harness) as connection:
        connection.sendall(b"POST /v1/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n" % ADMIN.encode())
        connection.sendall(b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n")
        chunks = [b"1\r\n%c\r\n" % byte for byte in body]
        sent = push(connection, (b"".join(chunks[i : i + 1000]) for i in range(0, len(chunks), 1000)))
        assert sent == 6 * len(body) > 4 * serving.MAX_HEAD_BYTES
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 201")


@pytest.mark.parametrize("start", [b"", b"GET /v1/health HTTP/1.1\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.2)
    with dial(harness) as connection:
        connection.sendall(start)
        assert connection.recv(100) == b""
    with dial(harness) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(100)  # between requests it may rest for longer
