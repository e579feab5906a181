"""Executions behind proxies that cut what is idle, or what is old: silent or chatty, no outcome is lost or made up."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from bellglass import Sandbox, StreamInterrupted
from bellglass.sdk import _patience
from bellglass.testing.daemons import end
from bellglass.testing.proxy import CuttingProxy
from bellglass.testing.stack import Stack

KEEPALIVE_S = 0.3
pytestmark = pytest.mark.own_stack(settings={"server.keepalive": KEEPALIVE_S})
IDLE_S = 2.0
LIFE_S = 0.4
SILENT = "sleep 3; echo done; exit 5"
CHATTY = "for i in $(seq 1 25); do echo $i; echo e$i >&2; sleep 0.1; done; exit 6"
SAID = "".join(f"{number}\n" for number in range(1, 26))
SAID_ERR = "".join(f"e{number}\n" for number in range(1, 26))


def through(proxy: CuttingProxy, stack: Stack, box: Any) -> Sandbox:
    return Sandbox.connect(box.id, api_url=proxy.url, api_key=stack.api_key)


class Ndjson:
    """A client of the lines, that attaches again at `next` and drops what it has by `offset`."""

    def __init__(self, proxy: CuttingProxy, stack: Stack, box: Any) -> None:
        self.url = f"{proxy.url}/v1/sandboxes/{box.id}/executions"
        self.headers = {"Authorization": f"Bearer {stack.api_key}", "Accept": "application/x-ndjson"}
        self.said = {"stdout": b"", "stderr": b""}
        self.ends = {"stdout": 0, "stderr": 0}
        self.next = 0
        self.keepalives = self.attached = 0
        self.exit: dict[str, Any] | None = None

    def take(self, line: str) -> None:
        value = json.loads(line)
        name = value["stream"]
        if name in self.said:
            data = value["text"].encode() if "text" in value else base64.b64decode(value["b64"])
            self.said[name] += data[max(self.ends[name] - value["offset"], 0) :]
            self.ends[name] = max(self.ends[name], value["offset"] + len(data))
            self.next = value["next"]
        elif name == "exit":
            self.exit = value
        elif name == "keepalive":
            self.keepalives += 1

    def run(self, command: str) -> None:
        with httpx2.Client(headers=self.headers, timeout=30, trust_env=False) as client:
            body = {"command": command, "detach": True}
            identity = client.post(self.url, json=body, headers={"Accept": "application/json"}).json()["id"]
            while self.exit is None:
                self.attached += 1
                query = {"offset": self.next, "follow": "true"}
                try:
                    with client.stream("GET", f"{self.url}/{identity}/output", params=query) as answer:
                        assert answer.status_code == 200
                        for line in answer.iter_lines():
                            self.take(line)
                except httpx2.TransportError:
                    continue


def test_a_silent_one_outlives_a_proxy_that_cuts_what_is_idle(own_stack: Stack, own_box: Any) -> None:
    with CuttingProxy.before(own_stack.api_url, idle_s=IDLE_S) as proxy:
        box = through(proxy, own_stack, own_box)
        lines = Ndjson(proxy, own_stack, own_box)
        headers = {"Authorization": f"Bearer {own_stack.api_key}"}
        with ThreadPoolExecutor(2) as pool:
            reading = pool.submit(lines.run, SILENT)
            whole = pool.submit(
                httpx2.post, lines.url, json={"command": SILENT}, headers=headers, timeout=30, trust_env=False
            )
            result = box.exec(SILENT)
            reading.result()
            answer = whole.result()
        assert (result.exit_code, result.stdout) == (5, "done\n")
        assert lines.exit is not None and lines.exit["exit_code"] == 5
        assert lines.said["stdout"] == b"done\n" and lines.attached == 1 and lines.keepalives >= 5
        assert answer.json()["execution"]["exit_code"] == 5 and answer.text.startswith("  ")
        assert (proxy.cuts, proxy.dials) == (0, 3), "a connection each, kept alive"
        box.close()


def test_a_proxy_that_cuts_sooner_than_that_costs_connections_and_no_outcome(own_stack: Stack, own_box: Any) -> None:
    """The same proxies do cut, or the test before would show nothing."""
    with CuttingProxy.before(own_stack.api_url, idle_s=KEEPALIVE_S / 4) as proxy:
        box = through(proxy, own_stack, own_box)
        lines = Ndjson(proxy, own_stack, own_box)
        reader = threading.Thread(target=lines.run, args=(SILENT,))
        reader.start()
        result = box.exec("echo $$ >> runs; " + SILENT)
        reader.join(60)
        assert (result.exit_code, result.stdout) == (5, "done\n")
        assert proxy.cuts >= 6
        assert lines.exit is not None and lines.exit["exit_code"] == 5 and lines.said["stdout"] == b"done\n"
        assert lines.attached >= 3
        box.close()
    assert len(own_box.exec("cat runs").stdout.split()) == 1


def test_a_chatty_one_behind_a_proxy_that_cuts_what_is_old(own_stack: Stack, own_box: Any) -> None:
    with CuttingProxy.before(own_stack.api_url, life_s=LIFE_S) as proxy:
        box = through(proxy, own_stack, own_box)
        lines = Ndjson(proxy, own_stack, own_box)
        reader = threading.Thread(target=lines.run, args=(CHATTY,))
        reader.start()
        result = box.exec(CHATTY)
        reader.join(60)
        assert (result.exit_code, result.stdout, result.stderr) == (6, SAID, SAID_ERR)
        assert lines.exit is not None and lines.exit["exit_code"] == 6
        assert (lines.said["stdout"].decode(), lines.said["stderr"].decode()) == (SAID, SAID_ERR)
        assert lines.attached >= 4 and proxy.cuts >= 8
        fed = box.exec(["cksum"], stdin=(b"x" * 10_000 for _ in slowly(25)))
        assert fed.stdout.split()[1] == "250000"
        box.close()


def slowly(count: int) -> Iterator[int]:
    for number in range(count):
        time.sleep(0.05)
        yield number


def test_without_an_outcome_there_is_no_zero(own_stack: Stack, own_box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy goes away for good while it runs: that is an error, which names the execution to attach to."""
    monkeypatch.setattr(_patience, "RECONNECT_S", 1.0)
    with CuttingProxy.before(own_stack.api_url) as proxy:
        box = through(proxy, own_stack, own_box)
        heard = threading.Event()
        closer = threading.Thread(target=lambda: (heard.wait(30), setattr(proxy, "_closing", True)))
        closer.start()
        with pytest.raises(StreamInterrupted, match="not known") as caught:
            box.exec("echo a; sleep 2; echo b", on_stdout=lambda _: heard.set())
        closer.join()
        box.close()
    result = own_box.execution(caught.value.details["execution_id"]).wait()
    assert (result.stdout, result.exit_code) == ("a\nb\n", 0)


def test_a_server_that_dies_cuts_the_lines_without_an_end(own_stack: Stack, own_box: Any) -> None:
    """For a client of the plain HTTP API a stream that was cut does not look like one that ended."""
    headers = {"Authorization": f"Bearer {own_stack.api_key}", "Accept": "application/x-ndjson"}
    url = f"{own_stack.api_url}/v1/sandboxes/{own_box.id}/executions"
    lines: list[dict[str, Any]] = []
    with (
        httpx2.Client(headers=headers, timeout=30, trust_env=False) as client,
        pytest.raises(httpx2.TransportError),
        client.stream("POST", url, json={"command": "echo a; sleep 2; echo b; exit 9"}) as answer,
    ):
        for line in answer.iter_lines():
            lines.append(json.loads(line))
            if lines[-1]["stream"] == "stdout":
                end(own_stack, "server")
    assert "exit" not in [line["stream"] for line in lines]
    result = own_box.execution(lines[0]["id"]).wait()
    assert (result.stdout, result.exit_code) == ("a\nb\n", 9)
