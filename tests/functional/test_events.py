"""Refusals of a real sandbox as events: told soon, told once over killed daemons, bounded in a flood; and the guide."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bellglass import Network, Sandbox
from bellglass.testing.daemons import end_and_await
from bellglass.testing.stack import Stack, bellglass_command
from tests.functional.guides import blocks, environment, run_commands, run_python
from tests.functional.own import own_installation
from tests.functional.waiting import wait_until
from tests.unit.server.collector import Collector

pytestmark = pytest.mark.root
SMALL: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "15m"}
PATIENCE_S = 30.0
DIAL = """
import socket, sys
for host in sys.argv[1:]:
    try:
        with socket.create_connection((host, 443), 20) as sock:
            sock.recv(1)
    except OSError:
        pass
"""
FLOOD = """
import os, socket, time
for worker in range(4):
    if os.fork() == 0:
        end = time.monotonic() + 5
        count = 0
        while time.monotonic() < end:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.connect(("10.200.0.1", 53))
                for _ in range(200):
                    count += 1
                    name = b"".join(bytes([len(p)]) + p for p in (b"w%d-%d" % (worker, count), b"example"))
                    sock.send(b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + name + b"\\0\\0\\1\\0\\1")
        os._exit(0)
for _ in range(4):
    os.wait()
"""


def refused(box: Sandbox) -> list[dict[str, Any]]:
    return [event.data for event in box.events(types=["egress.refused"])]


def hosts(box: Sandbox) -> list[str]:
    return [one["host"] for one in refused(box)]


def test_a_refused_name_and_a_refused_connection(box: Sandbox) -> None:
    box.exec(["python3", "-c", DIAL, "evil.example", "203.0.114.9"])
    wait_until(lambda: len(refused(box)) == 2, PATIENCE_S, "two refusals")
    name, connection = refused(box)
    assert (name["protocol"], name["host"], name["reason"]) == ("dns", "evil.example", "name_not_allowed")
    assert (connection["protocol"], connection["address"], connection["port"]) == ("tcp", "203.0.114.9", 443)
    assert connection["reason"] == "address_not_allowed"
    # The control: what is allowed is no event, and is counted as allowed.
    allowed = box.network.set(Network(allow=["good.example:443"]))
    assert allowed.traffic is None
    box.exec(["python3", "-c", "import socket; print(socket.gethostbyname('good.example'))"], check=True)
    box.exec(["python3", "-c", DIAL, "late.example"])
    wait_until(lambda: hosts(box)[-1] == "late.example", PATIENCE_S, "a third refusal")
    assert len(refused(box)) == 3
    traffic = box.network.get().traffic
    assert traffic is not None
    assert traffic.refused["address_not_allowed"] == 1
    assert traffic.dns_refused >= 2
    assert traffic.dns_answered >= 1
    types = [event.type for event in box.events()]
    assert types.index("network.changed") < len(types) - 1


def test_the_command_line_follows(stack: Stack, box: Sandbox) -> None:
    argv = [*bellglass_command(), "events", box.id, "-f"]
    with subprocess.Popen(argv, env=environment(stack), stdout=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None
            lines = iter(following.stdout.readline, "")
            assert "sandbox.running" in next(
                line for line in lines if "sandbox.creating" not in line and box.id in line
            )
            box.exec(["python3", "-c", DIAL, "later.example"])
            told = next(line for line in lines if "egress" in line)
        finally:
            following.kill()
    assert told.split()[2:] == [box.id, "egress.refused", "later.example", "deny:", "name_not_allowed"]


@pytest.fixture
def collectors() -> Iterator[tuple[Collector, Collector]]:
    """Of JSON lines and of OTLP."""
    made = Collector(), Collector()
    yield made
    for one in made:
        one.stop()


def test_no_refusal_is_lost_or_told_twice_by_killed_daemons(collectors: tuple[Collector, Collector]) -> None:
    """Nor by collectors that are away for a while, or get the same again: a repeat has the same id."""
    lines, otlp = collectors
    settings = {"events.jsonl_url": lines.url, "events.otlp_endpoint": otlp.url}
    with own_installation(settings=settings) as stack, stack.sandbox(**SMALL) as box:
        expected: list[str] = []
        for daemon in ("server", "node", "server"):
            host = f"h{len(expected)}.example"
            expected.append(host)
            box.exec(["python3", "-c", DIAL, host])
            wait_until(lambda: hosts(box) == expected, PATIENCE_S, f"{expected} before {daemon} is killed")
            if len(expected) == 1:
                for one in collectors:
                    wait_until(lambda one=one: b"h0.example" in b"".join(one.taken), PATIENCE_S, "the first is sent")
                    one.stop()
            end_and_await(stack, daemon)
            wait_until(lambda: hosts(box) == expected, PATIENCE_S, f"{expected} after {daemon} was killed")
        for one in collectors:
            assert b"h1.example" not in b"".join(one.taken)
            one.start()

        def sent() -> list[str]:
            by_id = {record["id"]: record for record in lines.records()}
            assert all(record["sandbox_id"] == box.id for record in by_id.values() if record["sandbox_id"])
            return [record["data"]["host"] for record in by_id.values() if record["type"] == "egress.refused"]

        wait_until(lambda: sent() == expected, PATIENCE_S, lambda: f"{sent()} were sent as JSON lines")
        told = [f"egress.refused {host} (name_not_allowed)".encode() for host in expected]
        wait_until(lambda: all(text in b"".join(otlp.taken) for text in told), PATIENCE_S, "all are sent as OTLP")


def test_a_flood_of_refusals_is_bounded_and_counted(stack: Stack, new_box: Callable[..., Any]) -> None:
    hostile, honest = new_box(), new_box()
    journal = stack.data.journal_file
    before = journal.stat().st_size
    flooding = hostile.start(["python3", "-c", FLOOD])
    wait_until(lambda: len(refused(hostile)) > 0, PATIENCE_S, "the flood is seen")
    honest.exec(["python3", "-c", DIAL, "honest.example"])
    wait_until(lambda: hosts(honest) == ["honest.example"], PATIENCE_S, "the other sandbox's refusal")
    assert flooding.wait(check=True).ok
    traffic = hostile.network.get().traffic
    asked = traffic.dns_refused
    assert asked > 2000, "that was no flood"

    def told() -> int:
        """Of all that were refused, although no other refusal follows."""
        left_out = sum(event.data["count"] for event in hostile.events(types=["egress.suppressed"]))
        return left_out + len(refused(hostile))

    wait_until(lambda: told() >= asked * 0.99, PATIENCE_S, lambda: f"{told()} of {asked} are told")
    assert 0 < len(refused(hostile)) < 600, f"{len(refused(hostile))} of {asked} are listed"
    assert journal.stat().st_size - before < 4 * 2**20


def test_the_guides_commands_and_its_python(
    stack: Stack, no_leak: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "\n".join(blocks("events.md", "sh"))
    assert script.count("bellglass events") == 4
    printed = run_commands(stack, script, tmp_path)
    assert "evil.example" in printed
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [event["type"] for event in events][-1].startswith("sandbox.")
    assert "egress.refused" in {event["type"] for event in events}
    run_python(stack, "events.md", monkeypatch)
