"""A sandbox that floods the resolver slows down nobody else, and takes little of the host's processors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bellglass import Network
from bellglass.testing.daemons import process
from bellglass.testing.stack import Stack
from bellglass.testing.world import World

pytestmark = [pytest.mark.root]
SMALL: dict[str, Any] = {"memory": "128MiB", "disk": "256MiB", "lifetime": "15m"}
QUESTION = r"""
import json, socket, struct, sys, time
def question(name):
    raw = b"".join(bytes([len(label)]) + label for label in name.encode().split(b".")) + b"\0"
    return struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + raw + struct.pack("!HH", 1, 1)
"""
FLOOD = (
    QUESTION
    + r"""
how, count = sys.argv[1], 0
print("flooding", flush=True)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.connect(("10.200.0.1", 53))
while True:
    count += 1
    try:
        if how == "questions":
            datagrams.send(question(f"n{count}.evil.test"))
            continue
        with socket.create_connection(("10.200.0.1", 53), timeout=1) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in b"" if how == "connections" else b"\x0f\xff" + b"x" * 3000:
                sock.send(bytes([byte]))
    except OSError:
        continue
"""
)
ASK = (
    QUESTION
    + r"""
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.connect(("10.200.0.1", 53))
sock.settimeout(10)
waits = []
for _ in range(200):
    asked = time.monotonic()
    sock.send(question("web.test"))
    assert sock.recv(512)[3] & 0xF == 0
    waits.append(time.monotonic() - asked)
    time.sleep(0.005)
print(json.dumps(waits))
"""
)


@pytest.fixture(scope="module")
def guests(world: World, world_stack: Stack) -> Iterator[tuple[Any, Any]]:
    with world.inside():
        network = Network(allow=["web.test:80"])
        with (
            world_stack.sandbox(**SMALL, cpus=0.5, network=network) as loud,
            world_stack.sandbox(**SMALL, cpus=1, network=network) as quiet,
        ):
            yield loud, quiet


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("how", ["questions", "connections", "bytes"])
def test_the_neighbour_is_answered_as_before(
    world: World, world_stack: Stack, guests: tuple[Any, Any], how: str
) -> None:
    loud, quiet = guests
    resolver = process(world_stack, "resolver")
    assert resolver is not None
    with world.inside():
        flood = loud.start(["python3", "-c", FLOOD, how])
        assert next(event.text for event in flood.output(follow=True)).startswith("flooding")
        before, begun = cpu_s(resolver.pid), time.monotonic()
        done = quiet.exec(["python3", "-c", ASK], timeout=120)
        used = (cpu_s(resolver.pid) - before) / (time.monotonic() - begun)
        assert flood.status().state == "running", "it floods still"
        flood.signal("SIGKILL")
        assert done.ok, done.stderr
        waits = sorted(json.loads(done.stdout))
        assert waits[len(waits) // 2] < 0.1, "no answer was lost, and half of them took less than 100 ms"
        assert used < 0.5, f"the resolver took {used:.0%} of a processor"
    assert not any(name.endswith("evil.test") for name in world.dns.asked)
