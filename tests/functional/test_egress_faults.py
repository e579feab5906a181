"""Proxy, resolver and node killed while sandboxes use their networks: nothing gets out that may not, refusals come at
once, and everything comes back by itself."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bellglass import BellglassError, Network
from bellglass.supervise.control import read_record
from bellglass.testing.daemons import process
from bellglass.testing.stack import Stack
from bellglass.testing.world import ADDRESSES, World, echo

pytestmark = [pytest.mark.root]
SMALL: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "15m"}
WEB, RAW = ADDRESSES[1], ADDRESSES[2]
BACK_S = 60.0
TRY = r"""
import json, socket, sys, time
host, port = sys.argv[1], int(sys.argv[2])
begun = time.monotonic()
try:
    address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]
    with socket.create_connection(address, timeout=20) as sock:
        sock.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        found = b""
        while piece := sock.recv(4096):
            found += piece
    outcome = found.rpartition(b"\n")[2].decode()
except OSError as error:
    outcome = type(error).__name__
print(json.dumps([outcome, time.monotonic() - begun]))
"""
HOLD = r"""
import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
reader = sock.makefile("rb")
print(reader.readline().decode().strip(), flush=True)
for line in sys.stdin:
    try:
        sock.sendall(line.encode())
        print(reader.readline().decode().strip() or "end", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def internet(world: World) -> None:
    world.dns.zone |= {"web.test": [WEB], "raw.test": [RAW], "evil.test": [ADDRESSES[3]]}
    world.serve(WEB, 80)
    world.serve(RAW, 5000, echo)
    world.serve(ADDRESSES[3], 80)


@pytest.fixture
def guest(world: World, world_stack: Stack) -> Iterator[Any]:
    with world.inside():
        network = Network(allow=["web.test:80", "raw.test:5000"])
        with world_stack.sandbox(**SMALL, network=network) as made:
            yield made


def get(guest: Any, host: str = "web.test", port: int = 80) -> tuple[str, float]:
    """What came, or the error's name; and how long it took inside."""
    done = guest.exec(["python3", "-c", TRY, host, str(port)], timeout=60)
    assert done.ok, done.stderr
    outcome, seconds = json.loads(done.stdout)
    return outcome, seconds


def await_network(guest: Any) -> None:
    deadline = time.monotonic() + BACK_S
    while True:
        try:
            if get(guest)[0] == "hello":
                return
        except BellglassError as error:
            assert error.retryable, error  # the node is on its way back
        assert time.monotonic() < deadline, "its network does not come back"


def gone(stack: Stack, *names: str) -> None:
    """Dead, and nobody starts them again."""
    record = read_record(stack.data)
    assert record is not None
    for name in ("supervisor", *names):
        record.processes[name].send(signal.SIGKILL)
        assert record.processes[name].wait(time.monotonic() + 10)


def test_what_is_allowed_passes_and_what_is_not_does_not(world: World, guest: Any) -> None:
    assert get(guest)[0] == "hello"
    before = list(world.dialled)
    assert get(guest, "evil.test")[0] == "gaierror"
    for address in (ADDRESSES[3], "169.254.169.254", "10.0.0.1", "127.0.0.1"):
        assert get(guest, address)[0] in ("ConnectionResetError", "ConnectionRefusedError"), address
    assert world.dialled == before and "evil.test" not in world.dns.asked


@pytest.mark.parametrize("daemons", [("resolver",), ("proxy",), ("proxy", "resolver"), ("node",), ("proxy", "node")],
                         ids="+".join)  # fmt: skip
def test_a_killed_daemon_comes_back_with_the_networks(
    world: World, world_stack: Stack, guest: Any, daemons: tuple[str, ...]
) -> None:
    assert get(guest)[0] == "hello"
    before = {name: process(world_stack, name) for name in daemons}
    world_stack.kill(*daemons)
    deadline = time.monotonic() + BACK_S
    pause = threading.Event()
    while any(process(world_stack, name) in (before[name], None) for name in daemons):
        assert time.monotonic() < deadline, world_stack.logs()
        pause.wait(0.02)
    await_network(guest)
    assert get(guest, "evil.test")[0] == "gaierror" and get(guest, ADDRESSES[3])[0] != "hello"
    assert "evil.test" not in world.dns.asked


def test_daemons_that_hang_are_replaced(world_stack: Stack, guest: Any) -> None:
    assert get(guest)[0] == "hello"
    record = read_record(world_stack.data)
    assert record is not None
    hung = [record.processes[name] for name in ("proxy", "resolver")]
    for each in hung:
        each.send(signal.SIGSTOP)
    for each in hung:
        assert each.wait(time.monotonic() + BACK_S), "it was left hanging"
    await_network(guest)
    assert get(guest, "evil.test")[0] == "gaierror"


def test_a_question_that_died_with_the_resolver_is_asked_again_soon(guest: Any) -> None:
    """Not after the five seconds that a C library waits for a name server of the Internet."""
    assert "options timeout:1 " in guest.files.read_text("/etc/resolv.conf")


def test_an_address_that_a_program_kept_leads_on_after_the_resolver_was_started_anew(
    world_stack: Stack, guest: Any
) -> None:
    """As a web server keeps one that looks names up when it starts."""
    looked_up = guest.exec(["getent", "ahostsv4", "raw.test"])
    address = looked_up.stdout.split()[0]
    greeting = ["python3", "-c", "import socket, sys; print(socket.create_connection((sys.argv[1], 5000)).recv(9))"]
    assert guest.exec([*greeting, address]).stdout == "b'ready\\n'\n"
    world_stack.kill("resolver", "proxy")
    await_network(guest)
    assert guest.exec([*greeting, address]).stdout == "b'ready\\n'\n"


def test_open_connections_live_through_the_resolvers_death_and_end_with_the_proxys(
    world_stack: Stack, guest: Any
) -> None:
    held = guest.start(["python3", "-c", HOLD, "raw.test", "5000"], stdin_open=True)
    lines = (event.text for event in held.output(follow=True))
    assert next(lines) == "ready\n"
    held.write_stdin("one\n")
    assert next(lines) == "one\n"
    world_stack.kill("resolver")
    held.write_stdin("two\n")
    assert next(lines) == "two\n"
    await_network(guest)
    world_stack.kill("proxy")
    held.write_stdin("three\n")
    assert next(lines).strip() in ("ConnectionResetError", "BrokenPipeError", "end")


@pytest.mark.parametrize("daemons", [("proxy",), ("resolver",), ("proxy", "resolver")], ids="+".join)
def test_while_they_are_away_nothing_passes_and_refusals_come_at_once(
    world: World, world_stack: Stack, guest: Any, daemons: tuple[str, ...]
) -> None:
    assert get(guest)[0] == "hello"
    before = (list(world.dialled), list(world.dns.asked))
    gone(world_stack, *daemons)
    try:
        for host in ("web.test", "evil.test", WEB, ADDRESSES[3], "169.254.169.254", "198.18.0.5"):
            outcome, seconds = get(guest, host)
            assert outcome in ("gaierror", "ConnectionRefusedError", "ConnectionResetError"), host
            assert seconds < 15, f"{host}: {seconds:.1f} s"
        assert (world.dialled, world.dns.asked) == before, "not a packet"
    finally:
        world_stack.up(port=int(world_stack.api_url.rpartition(":")[2]))
    await_network(guest)


def doctor(stack: Stack) -> dict[str, tuple[str, str]]:
    done = stack.command("doctor", "--json", "--data-dir", str(stack.data_dir), timeout_s=120)
    checks = json.loads(done.stdout)["checks"]
    return {check["name"]: (check["outcome"], check["found"]) for check in checks}


def test_doctor_tells_of_a_wall_that_is_gone(world: World, world_stack: Stack) -> None:
    with world.inside():
        found = doctor(world_stack)
        assert found["nftables"][0] == "ok"
        assert found["egress"] == ("ok", "proxy and resolver run, the wall around them stands")
        table = f"bellglass_{world_stack.scope.installation}"
        world.host.run("nft", "delete", "table", "inet", table)
        outcome, what = doctor(world_stack)["egress"]
        assert outcome == "missing" and table in what
        world_stack.kill("node")
        deadline = time.monotonic() + BACK_S
        while doctor(world_stack)["egress"][0] != "ok":  # a node raises it before it attaches anything
            assert time.monotonic() < deadline, world_stack.logs()
        while world_stack.command("status", "--data-dir", str(world_stack.data_dir)).returncode:
            assert time.monotonic() < deadline, world_stack.logs()
