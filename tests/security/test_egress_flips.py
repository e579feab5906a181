"""A policy that changes, and daemons that die, under traffic: never a packet that the policy in force refuses."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from bellglass import Network, Rule
from bellglass.testing.daemons import process
from bellglass.testing.egress import until
from bellglass.testing.internet import EVIL, EVIL_V6, GOOD, METADATA, SSH, Internet
from bellglass.testing.stack import Stack
from tests.security.conftest import SMALL
from tests.security.inside import Inside

pytestmark = pytest.mark.root
FLIPS = 200
BACK_S = 60.0
TRAFFIC = r"""
# To each target by threads of its own, again and again: the banner, then echoes until it is cut. At the end, how often.
import json, socket, sys, threading
counts = {target: 0 for target in sys.argv[1:]}
ended = threading.Event()
def run(target):
    while not ended.is_set():
        try:
            with socket.create_connection((target, 22), timeout=5) as sock:
                for _ in range(50):
                    if not sock.recv(4096):
                        break
                    counts[target] += 1
                    sock.sendall(b"more")
        except OSError:
            ended.wait(0.001)
threads = [threading.Thread(target=run, args=(target,)) for target in counts for _ in range(3)]
for thread in threads:
    thread.start()
print("running", flush=True)
sys.stdin.read()
ended.set()
for thread in threads:
    thread.join()
print(json.dumps(counts))
"""


@contextmanager
def traffic(box: Any, *targets: str) -> Iterator[dict[str, int]]:
    """Runs meanwhile; how often each target answered stands in the dictionary at the end."""
    counts: dict[str, int] = {}
    running = box.start(["python3", "-c", TRAFFIC, *targets], stdin_open=True)
    lines = (event.text for event in running.output(follow=True) if event.stream == "stdout")
    assert next(lines) == "running\n"
    yield counts
    running.close_stdin()
    counts.update(json.loads("".join(lines)))


def await_dialled(internet: Internet, address: str) -> None:
    """Until it was dialled once more."""
    before = len(internet.dialled)
    until(lambda: any(found[0] == address for found in internet.dialled[before:]))


def test_two_hundred_changes_under_traffic_let_no_packet_out_of_policy(inside: Inside, internet: Internet) -> None:
    """From when a change has answered until the next one begins."""
    asked_before = len(internet.dns.asked_at)
    narrow, wide = Network(allow=["good.test:22"]), Network(
        allow=["good.test:22", "evil.test:22", Rule(cidr=f"{EVIL}/32", ports=[22])]
    )  # fmt: skip
    network = inside.box.network
    network.set(narrow)
    refused: list[tuple[float, float]] = []
    with internet.watch(EVIL) as packets, traffic(inside.box, "good.test", "evil.test", EVIL) as counts:
        for _ in range(FLIPS // 2):
            network.set(wide)
            await_dialled(internet, EVIL)
            network.set(narrow)
            begun = time.time()
            await_dialled(internet, GOOD)
            refused.append((begun, time.time()))
    asked = [at for name, at in internet.dns.asked_at[asked_before:] if name == "evil.test"]
    assert counts["good.test"] > 1000 and counts["evil.test"] > 100 and counts[EVIL] > 100, counts
    assert len(packets) > 1000 and asked

    def out_of_policy(at: float) -> bool:
        return any(begun <= at <= ended for begun, ended in refused)

    assert [packet for packet in packets if out_of_policy(packet.at) and not packet.only_ends] == []
    assert [at for at in asked if out_of_policy(at)] == []


@pytest.mark.parametrize("daemons", [("proxy",), ("resolver",), ("proxy", "resolver"), ("node",)], ids="+".join)
def test_daemons_that_die_under_traffic_let_nothing_out_and_come_back(
    inside: Inside, internet_stack: tuple[Internet, Stack], daemons: tuple[str, ...]
) -> None:
    """So does a sandbox that is made while proxy or resolver is away."""
    internet, stack = internet_stack
    only_good, refused = Network(allow=["good.test:22"]), ("evil.test", EVIL, METADATA)
    inside.allow("evil.test:22", Rule(cidr=f"{EVIL}/32", ports=[22]))
    with internet.watch(EVIL) as packets:
        assert inside.tcp("evil.test", SSH).passed and inside.tcp(EVIL, SSH).passed
    assert packets
    inside.box.network.set(only_good)
    found = []
    with internet.silence(EVIL, EVIL_V6, METADATA), ExitStack() as undo:
        found.append(undo.enter_context(traffic(inside.box, "good.test", *refused)))
        await_dialled(internet, GOOD)
        before = {name: process(stack, name) for name in daemons}
        stack.kill(*daemons)
        if "node" not in daemons:
            made = undo.enter_context(stack.sandbox(**SMALL, network=only_good))
            found.append(undo.enter_context(traffic(made, "good.test", *refused)))
            theirs = undo.enter_context(contextlib.closing(Inside(made, internet, stack)))
            until(lambda: theirs.tcp("good.test", SSH).passed, BACK_S)
        until(lambda: all(process(stack, name) not in (before[name], None) for name in daemons), BACK_S)
        until(lambda: inside.tcp("good.test", SSH).passed, BACK_S)
    assert all(counts["good.test"] for counts in found), found
    assert not any(counts[target] for counts in found for target in refused), found
