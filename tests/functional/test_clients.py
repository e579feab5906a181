"""Clients that read slowly, stop, vanish, or come by the thousand: others are served, and what was theirs is given up.

One installation of its own for all of it, with small logs and little patience.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bellglass.ids import new_ulid
from bellglass.testing.stack import Stack

CALL_S = 2.0
FRAMES = "Accept: application/x-bellglass-frames"
MANY = 10_500
"""More than the server holds at once."""
LOG_BYTES = 4 << 20
STALL_S = 6.0
pytestmark = pytest.mark.own_stack(settings={"node.log_limit": LOG_BYTES, "server.stall_timeout": f"{STALL_S:g}s"})

OPTIONS = {"cpus": 1, "memory": "512MiB", "disk": "512MiB", "lifetime": "15m"}


@pytest.fixture(scope="module")
def neighbour(own_stack: Stack) -> Iterator[Any]:
    with own_stack.sandbox(**OPTIONS) as box:
        box.exec(["true"])
        yield box


@pytest.fixture
def victim(own_stack: Stack) -> Iterator[Any]:
    """The sandbox that bad clients use; it must go within the bound whatever they did."""
    box = own_stack.sandbox(**OPTIONS)
    yield box
    began = time.monotonic()
    box.delete()
    assert time.monotonic() - began < CALL_S


def served(box: Any, calls: int = 5) -> float:
    """The longest of some calls, each within the bound."""
    worst = 0.0
    for _ in range(calls):
        began = time.monotonic()
        assert box.exec(["echo", "neighbour"]).stdout == "neighbour\n"
        assert box.info().state == "running"
        worst = max(worst, time.monotonic() - began)
    assert worst < 2 * CALL_S, f"two calls took {worst:.2f} s"
    return worst


def descriptors(stack: Stack) -> dict[str, int]:
    return {name: len(os.listdir(f"/proc/{stack.pids()[name]}/fd")) for name in ("server", "node")}


def settle(true: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def raw(own_stack: Stack) -> Iterator[Callable[..., Raw]]:
    """Makes connections that are closed at the end."""
    made: list[Raw] = []

    def make(**options: Any) -> Raw:
        made.append(Raw(own_stack, **options))
        return made[-1]

    yield make
    for one in made:
        one.socket.close()


class Raw:
    """A connection that does what no client library would."""

    def __init__(self, stack: Stack, *, receive_bytes: int | None = None) -> None:
        host, port = stack.api_url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(10)
        self.socket.connect((host, int(port)))
        self._key = stack.api_key

    def head(self, method: str, target: str, *headers: str) -> Raw:
        lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Authorization: Bearer {self._key}", *headers]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        return self

    def json(self, target: str, body: Any, *headers: str) -> Raw:
        raw = json.dumps(body).encode()
        self.head("POST", target, "Content-Type: application/json", f"Content-Length: {len(raw)}", *headers)
        self.socket.sendall(raw)
        return self

    def vanish(self) -> None:
        """RST: no goodbye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def test_ten_thousand_connections(own_stack: Stack, neighbour: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert hard > MANY + 500
    before, fds = own_stack.status()["pss_bytes"], descriptors(own_stack)
    host, port = own_stack.api_url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as owned:
        owned.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        sockets = []
        for number in range(MANY):
            one = socket.create_connection((host, int(port)), timeout=10)
            owned.callback(one.close)
            sockets.append(one)
            if number % 4 == 0:
                one.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n")  # and never the rest of it
            if number % 2000 == 0:
                served(neighbour, 1)
        served(neighbour, 10)
        with own_stack.sandbox(**OPTIONS) as another:
            served(another, 2)
        held = descriptors(own_stack)["server"] - fds["server"]
        assert 5000 < held <= 10_100, held
        grown = own_stack.status()["pss_bytes"]["server"] - before["server"]
        assert grown < 200 << 20, f"{grown >> 20} MiB for {held} connections"
    settle(lambda: descriptors(own_stack)["server"] <= fds["server"] + 4, 15, "connections are left")
    served(neighbour)


def test_clients_that_vanish_leave_nothing(
    own_stack: Stack, neighbour: Any, victim: Any, raw: Callable[..., Raw]
) -> None:
    base = f"/v1/sandboxes/{victim.id}"
    source = victim.start("while :; do echo line; sleep 0.01; done")
    victim.files.write_bytes("big", os.urandom(8 << 20))
    names = victim.exec("ls -A").stdout
    fds = descriptors(own_stack)
    bad: list[Raw] = []
    for number in range(20):
        upload = raw().head("PUT", f"{base}/files?path=half{number}", "Content-Length: 9000000")
        upload.socket.sendall(os.urandom(300_000))
        download = raw(receive_bytes=4096).head("GET", f"{base}/files?path=big")
        stream = raw().head("GET", f"{base}/executions/{source.id}/output?follow=true", FRAMES)
        bad += [upload, download, stream]
        assert stream.socket.recv(15) == b"HTTP/1.1 200 OK"
    settle(lambda: descriptors(own_stack)["server"] >= fds["server"] + 55, 10, "they don't get through")
    served(neighbour)
    for one in bad:
        one.vanish()
    settle(lambda: descriptors(own_stack)["server"] <= fds["server"] + 2, 10, "connections are left in the server")
    settle(lambda: descriptors(own_stack)["node"] <= fds["node"] + 2, 10, "descriptors are left in the node")
    settle(lambda: victim.exec("pgrep -c bellglass-agent").stdout.strip() == "1", 10, "workers of the agent are left")
    assert victim.exec("ls -A").stdout == names, "no half file, nor a temporary one"
    assert source.status().state == "running"
    served(victim, 2)


def test_floods_of_twenty_executions(own_stack: Stack, neighbour: Any, victim: Any, raw: Callable[..., Raw]) -> None:
    """Ten that nobody reads, five whose reader takes nothing, five whose reader takes a kilobyte per second."""
    target = f"/v1/sandboxes/{victim.id}/executions"
    before, fds = own_stack.status()["pss_bytes"], descriptors(own_stack)
    detached = [victim.start(["yes", "a flood that nobody reads"]) for _ in range(10)]
    ids = [new_ulid() for _ in range(10)]
    readers = [raw(receive_bytes=4096).json(target, {"id": one, "command": ["yes", "x" * 60]}, FRAMES) for one in ids]
    done = threading.Event()

    def trickle() -> None:
        while not done.wait(1):
            for reader in readers[5:]:
                reader.socket.recv(1024)

    thread = threading.Thread(target=trickle, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            served(neighbour, 1)
        now = own_stack.status()["pss_bytes"]
        for name in ("server", "node", "helper"):
            assert now[name] - before[name] < 64 << 20, f"{name} grew by {now[name] - before[name] >> 20} MiB"
        logs = own_stack.data.executions_dir / victim.id
        stored = sum(path.stat().st_blocks * 512 for path in Path(logs).rglob("*") if path.is_file())
        assert stored < 20 * (LOG_BYTES + (1 << 20)), f"{stored >> 20} MiB of logs"
        for one in detached:
            assert one.status().output_bytes > LOG_BYTES, "it floods on"
        for one in ids:
            assert victim.execution(one).status().output_bytes < LOG_BYTES, "its reader holds it up"
        settle(
            lambda: descriptors(own_stack)["server"] <= fds["server"] + 5 + 2,
            STALL_S * 3,
            "readers that take nothing are kept for ever",
        )
    finally:
        done.set()
        thread.join()
        for reader in readers:
            reader.vanish()
    for one in detached:
        one.kill()
    settle(lambda: descriptors(own_stack)["server"] <= fds["server"] + 2, 10, "connections are left")
