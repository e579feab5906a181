"""A sandbox's network through what the node goes through: its death under an open connection, `down` and `up` around a
running sandbox, a create while proxy and resolver are away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bellglass import BellglassError, Network
from bellglass.supervise.control import read_record
from bellglass.testing.daemons import end_and_await
from bellglass.testing.stack import Stack
from bellglass.testing.world import ADDRESSES, World, echo

pytestmark = [pytest.mark.root]
SMALL: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "15m"}
RAW, OTHER = ADDRESSES[2], ADDRESSES[3]
ALLOWED = Network(allow=["raw.test:5000"])
BACK_S = 60.0
BEAT = r"""
import socket, time
sock = socket.create_connection(("raw.test", 5000))
reader = sock.makefile("rb")
assert reader.readline() == b"ready\n"
beat = 0
while True:
    beat += 1
    sock.sendall(b"%d\n" % beat)
    assert reader.readline() == b"%d\n" % beat
    with open("beat.new", "w") as file:
        file.write(str(beat))
    import os
    os.replace("beat.new", "beat")
    time.sleep(0.05)
"""
DIAL = r"""
import json, socket, sys
out = []
for host, port in json.loads(sys.argv[1]):
    try:
        with socket.create_connection((host, port), timeout=20) as sock:
            out.append(sock.recv(6).decode())
    except OSError as error:
        out.append(type(error).__name__)
print(json.dumps(out))
"""
TRIES = [["raw.test", 5000], ["other.test", 5000], [OTHER, 5000]]
PASSES = ["ready\n", "gaierror", "ConnectionResetError"]


@pytest.fixture(scope="module", autouse=True)
def internet(world: World) -> None:
    world.dns.zone |= {"raw.test": [RAW], "other.test": [OTHER]}
    world.serve(RAW, 5000, echo)
    world.serve(OTHER, 5000, echo)


@pytest.fixture(autouse=True)
def on_the_host(world: World) -> Iterator[None]:
    with world.inside():
        yield


def dialled(guest: Any) -> list[str]:
    done = guest.exec(["python3", "-c", DIAL, json.dumps(TRIES)], timeout=60)
    assert done.ok, done.stderr
    return list(json.loads(done.stdout))


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BACK_S
    while True:
        try:
            if holds():
                return
        except BellglassError as error:
            assert error.retryable, error  # the node is on its way back
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_connection_lives_through_the_nodes_death(world_stack: Stack) -> None:
    with world_stack.sandbox(**SMALL, network=ALLOWED) as guest:
        guest.start(["python3", "-c", BEAT])
        wait_until(lambda: guest.files.exists("beat"), "it does not beat")
        end_and_await(world_stack, "node")
        wait_until(lambda: guest.exec(["true"]).ok, "its node does not come back")
        seen = int(guest.files.read_text("beat"))
        wait_until(lambda: int(guest.files.read_text("beat")) > seen + 20, "the connection has not lived")
        assert dialled(guest) == PASSES


def test_down_and_up_around_a_running_sandbox(world: World, world_stack: Stack) -> None:
    port = int(world_stack.api_url.rpartition(":")[2])
    with world_stack.sandbox(**SMALL, network=ALLOWED) as guest:
        assert dialled(guest) == PASSES
        guest.start(["sh", "-c", f"while ! [ -e stop ]; do python3 -c '{DIAL}' '{json.dumps(TRIES)}' >> tried; done"])
        wait_until(lambda: guest.files.exists("tried"), "it does not dial")
        world_stack.down(sandboxes=False)
        while_down = len(world.dialled)
        record = read_record(world_stack.data)
        assert record is not None and not record.alive("proxy")
        pin = world_stack.data.gateways_dir / guest.id
        assert pin.exists(), "its gateway stays"
        assert len(world.dialled) == while_down
        world_stack.up(port=port)
        wait_until(lambda: dialled(guest) == PASSES, "its network does not come back")
        guest.files.write_text("stop", "")
        outcomes = [json.loads(line) for line in guest.files.read_text("tried").splitlines()]
        for allowed, name, address in outcomes:
            assert allowed in ("ready\n", "", "gaierror", "ConnectionRefusedError", "ConnectionResetError")
            assert name == "gaierror"
            assert address in ("ConnectionRefusedError", "ConnectionResetError")
    assert all(address == RAW for address, _, _ in world.dialled)


def test_a_create_while_proxy_and_resolver_are_away(world_stack: Stack) -> None:
    """It waits for them a little, and what it may reach it reaches."""
    world_stack.kill("proxy", "resolver")
    with world_stack.sandbox(**SMALL, network=ALLOWED) as guest:
        wait_until(lambda: dialled(guest) == PASSES, "it has no network")


def test_a_create_while_they_stay_away(world_stack: Stack) -> None:
    """Nobody is told of it, so all is refused at once; when they are back it has what its network is by then."""
    port = int(world_stack.api_url.rpartition(":")[2])
    world_stack.kill("supervisor", "proxy", "resolver")
    try:
        guest = world_stack.sandbox(**SMALL)
        began = time.monotonic()
        outcomes = dialled(guest)
        assert time.monotonic() - began < 10
    finally:
        world_stack.up(port=port)
    with guest:
        assert outcomes == ["gaierror", "gaierror", "ConnectionRefusedError"]
        wait_until(lambda: guest.exec(["true"]).ok, "its node does not come back")
        guest.network.set(ALLOWED)
        assert dialled(guest) == PASSES
