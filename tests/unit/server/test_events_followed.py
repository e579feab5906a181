"""Following events with SDK and command line, over connections that break."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_harness import Harness

from bellglass import AsyncSandbox, NotFound, Sandbox
from bellglass.model import now
from bellglass.sdk._sync.events import read_events
from bellglass.testing.proxy import CuttingProxy

COUNT = 60


def tell(harness: Harness, sandbox_id: str, *hosts: str, **more: Any) -> None:
    found = {"at": now(), "protocol": "tcp", "address": None, "port": 443, "reason": "name_not_allowed"}
    refusals = [{**found, "host": host, "rule": "deny", "count": 1, **more} for host in hosts]

    async def write() -> None:
        harness.peer.event("egress.refused", sandbox_id, refusals=refusals, left_out=0)

    harness.run(write())


@pytest.fixture
def key(harness: Harness) -> str:
    return str(harness.key("followed")["secret"])


@pytest.fixture
def box(harness: Harness, key: str) -> Iterator[Sandbox]:
    with Sandbox("base", cpus=1, api_url=harness.url, api_key=key) as made:
        yield made


def test_a_follower_goes_on_over_breaks(harness: Harness, box: Sandbox, key: str) -> None:
    hosts: list[str] = []
    with CuttingProxy.before(harness.url, life_s=0.3) as proxy:
        through_proxy = Sandbox.connect(box.id, api_url=proxy.url, api_key=key)

        def told() -> None:
            for i in range(COUNT):
                harness.until(lambda i=i: len(hosts) >= i - 3, 30)
                tell(harness, box.id, f"h{i}.example")

        teller = threading.Thread(target=told)
        teller.start()
        for event in through_proxy.events(follow=True, types=["egress.refused"]):
            hosts.append(event.data["host"])
            if len(hosts) == COUNT:
                break
        teller.join()
        through_proxy.close()
        assert proxy.cuts >= 2, "nothing broke"
    assert hosts == [f"h{i}.example" for i in range(COUNT)]


def test_events_without_following(harness: Harness, box: Sandbox, key: str) -> None:
    tell(harness, box.id, *(f"p{i}.example" for i in range(100)))
    harness.until(lambda: len(list(box.events(types=["egress.*"]))) == 100)
    events = list(box.events())
    assert [event.type for event in events[:2]] == ["sandbox.creating", "sandbox.running"]
    behind = list(box.events(cursor=events[1].seq))
    assert [event.data["host"] for event in behind] == [f"p{i}.example" for i in range(100)]

    async def alike() -> list[int]:
        async with asyncio.timeout(20):
            other = await AsyncSandbox.connect(box.id, api_url=harness.url, api_key=key)
            try:
                return [event.seq async for event in other.events(since="1h")]
            finally:
                await other.aclose()

    assert asyncio.run(alike()) == [event.seq for event in events]


def test_a_stranger_follows_nothing(harness: Harness, box: Sandbox) -> None:
    assert next(iter(box.events())).sandbox_id == box.id
    with Sandbox("base", cpus=1, api_url=harness.url, api_key=harness.key("stranger")["secret"]) as own:
        for follow in (False, True):
            events = read_events(own._transport, f"/v1/sandboxes/{box.id}/events", follow=follow)
            with pytest.raises(NotFound):
                next(events)


class Command:
    """`bellglass` in a process of its own."""

    def __init__(self, harness: Harness, key: str, *arguments: str) -> None:
        environment = {"BELLGLASS_API_URL": harness.url, "BELLGLASS_API_KEY": key, "TZ": "UTC"}
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("bellglass")), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def lines(self) -> list[str]:
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, out
        return out.splitlines()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")


def test_the_command_line_shows_what_was_refused(harness: Harness, box: Sandbox, key: str) -> None:
    tell(harness, box.id, "evil.example\x1b[2J", count=3)
    harness.until(lambda: len(list(box.events())) == 3)
    head, *rows = Command(harness, key, "events", box.id).lines()
    assert head.split() == ["TIME", "SANDBOX", "WHAT", "DESTINATION", "RULE"]
    assert len(rows) == 3
    assert rows[2].split()[2:] == [box.id, "egress.refused", "evil.example?[2J:443", "(3", "times)", "deny:",
                                   "name_not_allowed"]  # fmt: skip
    only = Command(harness, key, "events", "--type", "egress.*", "--json").lines()
    assert [json.loads(line)["data"]["count"] for line in only if json.loads(line)["sandbox_id"] == box.id] == [3]


def test_the_command_line_follows(harness: Harness, box: Sandbox, key: str) -> None:
    tell(harness, box.id, "before.example")
    harness.until(lambda: len(list(box.events(types=["egress.refused"]))) == 1)
    following = Command(harness, key, "events", "-f", "-n", "1", "--type", "egress.refused")
    try:
        assert following.line().split()[0] == "TIME"
        # What comes is followed from here on.
        assert "before.example:443" in following.line()
        tell(harness, box.id, "now.example")
        assert "now.example:443" in following.line()
    finally:
        following.process.terminate()
        following.process.communicate(timeout=30)
