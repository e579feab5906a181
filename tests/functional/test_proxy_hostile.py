"""Two thousand odd streams at the proxy: it lives, has nothing in its log, and keeps no connection and no memory."""

from __future__ import annotations

import contextlib
import json
import random
import ssl
from pathlib import Path

from bellglass.testing.egress import WORLD, Rig, until
from benchmarks.egress import ECHO, program

# Of each stream: connect, send it in pieces, take what comes for a moment, and end in one of three ways.
STREAMS = r"""
import json, random, socket, struct, sys
address, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
choose = random.Random(seed)
hello = bytes.fromhex(sys.argv[4])
head = b"GET /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc"
chunked = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
print("ready", flush=True)
for _ in range(count):
    data = bytearray(choose.choice([hello, head * 2, chunked + head, choose.randbytes(200), b"SSH-2.0-x\r\n", b""]))
    for _ in range(choose.randrange(4)):
        if data:
            at = choose.randrange(len(data))
            kind = choose.randrange(4)
            if kind == 0:
                data[at] ^= 1 << choose.randrange(8)
            elif kind == 1:
                del data[at : at + choose.randrange(40)]
            elif kind == 2:
                data[at:at] = choose.choice([b"\r\n", b"\n", b"\0", b"\xff" * 30, b"Host: evil.test\r\n", data[:50]])
            else:
                del data[at:]
    try:
        with socket.create_connection((address, choose.choice([22, 80, 443])), 20) as sock:
            sock.settimeout(0.002)
            while data:
                size = choose.choice([1, 7, 100, 10000])
                sock.send(data[:size])
                del data[:size]
            end = choose.randrange(3)
            if end == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif end == 1:
                sock.shutdown(socket.SHUT_WR)
            sock.recv(100)
    except OSError:
        pass
print(json.dumps(count))
"""


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def hello() -> bytes:
    """For a.test."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="a.test").do_handshake()
    return outgoing.read()


def test_odd_streams() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with Rig() as rig, program(rig.world, ECHO, WORLD + "10"):
        rig.dns.zone["a.test"] = [WORLD + "10"]
        box = rig.attach("sb1", {"host": "a.test", "ports": [22, 80, 443]})
        address = box.resolve("a.test")
        sizes = []
        for part in range(3):
            argv = (address, seed + part, 700, hello().hex())
            with program(box.inner, STREAMS, *argv) as process:
                output, _ = process.communicate("")
                assert json.loads(output) == 700
            until(lambda: rig.counters("sb1")["open"] == 0, 60)
            sizes.append(resident(rig.processes["proxy"].pid))
        assert sizes[2] - sizes[1] < 2048, sizes
        with box.dial("a.test", 22) as client:
            client.sendall(b"SSH-2.0-y\r\n")
            assert client.recv(11) == b"SSH-2.0-y\r\n"
