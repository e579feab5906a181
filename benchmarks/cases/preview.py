"""A published port: what a request through it costs over the same request inside, and how fast bytes go through.

The program is a small HTTP server inside; "direct" is a client in the same sandbox over its loopback. Both clients keep
their connection. Bytes are counted by a visitor that throws them away, with the growth of the daemons meanwhile.
"""

from __future__ import annotations

import json
import socket
import statistics
from typing import Any
from urllib.parse import urlsplit

from benchmarks.bench import Bench
from benchmarks.measure import Bound, Row, stopwatch
from benchmarks.memory import MIB, Growth

OURS = "bellglass, published port"
DIRECT = "the sandbox's own loopback"
PORT = 8000
MOST_OVER_DIRECT_MS = 4.0
PROGRAM = """
import socket, sys, threading
BIG = bytes(1 << 20)
def serve(c):
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    held = b""
    while True:
        while b"\\r\\n\\r\\n" not in held:
            data = c.recv(65536)
            if not data:
                return
            held += data
        head, _, held = held.partition(b"\\r\\n\\r\\n")
        size = int(head.split()[1][1:] or b"0") if head.startswith(b"GET /") else 0
        lines = [line.lower() for line in head.split(b"\\r\\n")]
        length = sum(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        left = length - len(held)
        held = b""
        while left > 0:
            left -= len(c.recv(min(left, 1 << 20)))
        c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % size)
        while size > 0:
            size -= c.send(BIG[:size])
s = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"""
CLIENT = """
import json, socket, sys, time
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
took = []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    c.sendall(b"GET /100 HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
    got = b""
    while not got.endswith(bytes(100)):
        got += c.recv(65536)
    took.append((time.perf_counter() - began) * 1000)
print(json.dumps(took))
"""


class Visitor:
    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self.connection = socket.create_connection(("127.0.0.1", parts.port), timeout=60)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.more = f"HTTP/1.1\r\nHost: {parts.netloc}\r\nX-Bellglass-Token: {token}\r\n"

    def get(self, size: int) -> None:
        """An answer of so many bytes, thrown away."""
        self.connection.sendall(f"GET /{size} {self.more}\r\n".encode())
        self._answer(size)

    def put(self, size: int) -> None:
        self.connection.sendall(f"PUT /0 {self.more}Content-Length: {size}\r\n\r\n".encode())
        block = memoryview(bytes(MIB))
        while size > 0:
            size -= self.connection.send(block[:size])
        self._answer(0)

    def _answer(self, size: int) -> None:
        buffer = memoryview(bytearray(MIB))
        head = b""
        while b"\r\n\r\n" not in head:
            piece = self.connection.recv(65536)
            if not piece:
                raise ConnectionError("hung up")
            head += piece
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(head[:100].decode("latin-1"))
        left = size - len(head.partition(b"\r\n\r\n")[2])
        while left > 0:
            got = self.connection.recv_into(buffer, min(left, MIB))
            if not got:
                raise ConnectionError("hung up")
            left -= got


def measure(bench: Bench) -> list[Row]:
    times, rounds = bench.times(200, 40), bench.times(5, 2)
    size_mib = bench.times(512, 64)
    direct: list[float] = []
    through: list[float] = []
    first: list[float] = []
    with bench.sandbox() as box:
        running = box.start(["python3", "-c", PROGRAM, str(PORT)])
        next(iter(running.output(follow=True)))  # it listens
        published = box.publish(PORT)
        token = published.token().token
        for _ in range(rounds):
            direct += _inside(box, times)
            visitor = Visitor(published.url, token)
            visitor.get(100)
            through += [_timed(lambda: visitor.get(100)) for _ in range(times)]  # noqa: B023 - called at once
            visitor.connection.close()
            first += [_timed(lambda: _once(published.url, token)) for _ in range(times // 4)]
        limit = statistics.median(direct) + MOST_OVER_DIRECT_MS
        pids = {name: pid for name, pid in bench.stack.pids().items() if name in ("server", "node")}
        with Growth(pids) as growth:
            visitor = Visitor(published.url, token)
            down = [_rate(lambda: visitor.get(size_mib * MIB), size_mib) for _ in range(rounds)]
            up = [_rate(lambda: visitor.put(size_mib * MIB), size_mib) for _ in range(rounds)]
            visitor.connection.close()
        running.kill()
    rows = [
        Row("preview", "a request, connection kept", DIRECT, "ms", direct),
        Row("preview", "a request, connection kept", OURS, "ms", through, (Bound("p50", limit),)),
        Row("preview", "a request on a new connection", OURS, "ms", first),
        Row("preview", f"{size_mib} MiB down", OURS, "MB/s", down),
        Row("preview", f"{size_mib} MiB up", OURS, "MB/s", up),
    ]
    rows += [
        Row("preview", f"growth of {name} meanwhile", OURS, "MiB", [grown / MIB], (Bound("max", 64.0),))
        for name, grown in growth.bytes.items()
    ]
    return rows


def _inside(box: Any, times: int) -> list[float]:
    done = box.exec(["python3", "-c", CLIENT, str(PORT), str(times)], check=True)
    return [float(took) for took in json.loads(done.stdout)]


def _once(url: str, token: str) -> None:
    visitor = Visitor(url, token)
    visitor.get(100)
    visitor.connection.close()


def _timed(call: Any) -> float:
    with stopwatch() as elapsed_ms:
        call()
        return elapsed_ms()


def _rate(call: Any, size_mib: int) -> float:
    """MB/s."""
    return size_mib * MIB / 1e6 / (_timed(call) / 1000)
