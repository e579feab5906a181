"""Connections have a limit: idle ones make room, and one key can't take everything. Clients that stop are cut off."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_harness import ADMIN, Harness, dial

LIMIT = 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Harness]:
    """A server for few."""
    harness = Harness(tmp_path, {"server.max_connections": LIMIT, "server.stall_timeout": 1.5}).start()
    yield harness
    harness.stop()


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Harness]:
    """One that gives each key little."""
    harness = Harness(tmp_path, {"server.max_key_requests": 3}).start()
    yield harness
    harness.stop()


@pytest.fixture
def connections() -> Iterator[list[socket.socket]]:
    """Closed at the end."""
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


def ask(connection: socket.socket, path: str = "/v1/keys") -> tuple[int, dict[str, Any]]:
    connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\n\r\n".encode())
    return answer(connection)


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    with connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        length = 0
        while (line := file.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status, json.loads(file.read(length) or b"{}")


def hung_up(connection: socket.socket, within_s: float = 5) -> bool:
    connection.settimeout(within_s)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_strangers_make_room_before_those_with_a_key(small: Harness, connections: list[socket.socket]) -> None:
    friend = dial(small)
    connections.append(friend)
    assert ask(friend)[0] == 200
    strangers = [dial(small) for _ in range(3 * LIMIT)]
    connections += strangers
    assert all(hung_up(one) for one in strangers[: 2 * LIMIT]), "the oldest go"
    assert ask(friend)[0] == 200, "which has been idle for longer, but has shown a key"
    assert ask(strangers[-1])[0] == 200
    with dial(small) as another:
        assert ask(another)[0] == 200


def test_with_none_idle_a_new_one_is_told_why(small: Harness, connections: list[socket.socket]) -> None:
    connections += [begin_body(small) for _ in range(LIMIT)]
    small.until(lambda: under_way(small) == LIMIT)
    with dial(small) as extra:
        status, body = answer(extra)
    assert (status, body["error"]["code"]) == (503, "no_capacity")
    assert body["error"]["details"] == {"resource": "connections"} and body["error"]["retryable"]
    connections.pop().close()
    small.until(lambda: len(counted_of(small).open) < LIMIT)
    with dial(small) as extra:
        assert ask(extra)[0] == 200


def counted_of(harness: Harness) -> Any:
    made: Any = harness.server.config.http_protocol_class
    return made.keywords["counted"]


def begin_body(harness: Harness) -> socket.socket:
    """A request whose body never comes."""
    connection = dial(harness)
    connection.sendall(
        b"POST /v1/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: 20\r\n\r\n{" % ADMIN.encode()
    )
    return connection


def test_one_key_has_so_many_requests_and_no_more(strict: Harness, connections: list[socket.socket]) -> None:
    connections += [begin_body(strict) for _ in range(3)]
    strict.until(lambda: under_way(strict) == 3)
    with dial(strict) as extra:
        status, body = ask(extra)
        assert (status, body["error"]["code"]) == (429, "limit_exceeded")
        assert "max_key_requests" in body["error"]["hint"] and body["error"]["retryable"]
        for one in connections:
            one.close()
        strict.until(lambda: under_way(strict) == 0)
        assert ask(extra)[0] == 200


def under_way(harness: Harness) -> int:
    auth = harness.application.services.auth  # type: ignore[union-attr]
    return auth._admin.key.requests if auth._admin is not None else 0


def test_a_body_that_stops_is_cut_off(small: Harness) -> None:
    with begin_body(small) as stopped:
        small.until(lambda: under_way(small) == 1)
        began = time.monotonic()
        assert hung_up(stopped)
        assert time.monotonic() - began < 5
    with begin_body(small) as slow:
        for _ in range(4):
            time.sleep(0.5)
            slow.sendall(b" ")
        slow.sendall(b'"project": "p"}')
        assert answer(slow)[0] in (201, 422), "slow, but it never stopped for so long"
    small.until(lambda: under_way(small) == 0)


def test_all_are_forgotten(small: Harness) -> None:
    made = [dial(small) for _ in range(LIMIT)]
    small.until(lambda: len(counted_of(small).open) >= LIMIT)
    for one in made:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        one.close()
    counted = counted_of(small)
    small.until(lambda: not counted.open and not counted._idle and not counted._strangers and not counted.lingering)
