"""Callers of envd that mean harm, and those who have gone."""

from __future__ import annotations

import gzip
import http.client
import socket
import struct
import threading
from collections.abc import Callable

import pytest

from bellglass.testing.stack import Stack
from tests.compat.envd_wire import MIB, STREAM, UNARY, Live, Wire, command, output_of, upload


def connected(wire: Wire) -> socket.socket:
    host, port = wire.address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def head(wire: Wire, path: str, kind: str, length: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {kind}", length]
    lines += [f"{name}: {value}" for name, value in wire.headers().items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.mark.parametrize(("path", "kind"), [("/process.Process/Start", STREAM), ("/process.Process/List", UNARY)])
def test_a_huge_message_is_refused_before_it_is_sent(wire: Wire, path: str, kind: str) -> None:
    with connected(wire) as connection:
        connection.sendall(head(wire, path, kind, f"Content-Length: {5 + 100 * MIB}"))
        connection.sendall(struct.pack(">BI", 0, 100 * MIB))
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        assert b"resource_exhausted" in answer
    assert wire.start("true").status == 200


def test_a_body_that_stops_holds_up_nobody(wire: Wire) -> None:
    held = [connected(wire) for _ in range(20)]
    for connection in held:
        connection.sendall(head(wire, "/process.Process/Start", STREAM, "Transfer-Encoding: chunked") + b"5\r\n\0\0\0")
    assert output_of(wire.start("echo others")) == b"others\n"
    for connection in held:
        connection.close()


def test_an_upload_that_is_cut_leaves_others_alone(wire: Wire) -> None:
    with connected(wire) as connection:
        connection.sendall(head(wire, "/files?path=/tmp/cut-off", "application/octet-stream", "Content-Length: 1000"))
        connection.sendall(b"half")
    assert upload(wire, "/tmp/whole", b"whole").status == 200


def test_a_packed_body_that_grows_without_end_is_not_kept_in_memory(wire: Wire, stack: Stack) -> None:
    bomb = gzip.compress(b"\0" * (96 * MIB))
    before = resident(stack)
    answer = upload(wire, "/tmp/bomb", bomb, Content_Encoding="gzip")
    assert answer.status == 200
    assert resident(stack) - before < 32 * MIB
    wire.unary("filesystem.Filesystem/Remove", {"path": "/tmp/bomb"})


def resident(stack: Stack) -> int:
    with open(f"/proc/{stack.pids()['server']}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def test_a_client_that_hangs_up_leaves_its_command(wire: Wire) -> None:
    live = Live(wire, "process.Process/Start", command("sleep 1; echo finished > /tmp/finished; sleep 60"))
    pid = live.next()[1]["event"]["start"]["pid"]
    live.close()
    connect = Live(wire, "process.Process/Connect", {"process": {"pid": pid}})
    connect.next()
    assert output_of(wire.start("until [ -e /tmp/finished ]; do sleep .05; done; cat /tmp/finished")) == b"finished\n"
    wire.unary("process.Process/SendSignal", {"process": {"pid": pid}, "signal": 9})
    assert connect.next()[1]["event"]["end"]["status"] == "signal: killed"
    connect.close()


def test_streams_of_a_dead_sandbox_are_cut(create: Callable[[], Wire], delete: Callable[[Wire], None]) -> None:
    wire = create()
    live = Live(wire, "process.Process/Start", command("sleep 600"))
    live.next()
    ended = threading.Thread(target=delete, args=(wire,))
    ended.start()
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        live.answer.read()
    assert wire.ask("GET", "/health").status == 502  # at once: clients ask it then
    ended.join()
    live.close()
