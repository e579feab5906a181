"""Start of E2B's envd over what becomes of the node meanwhile."""

from __future__ import annotations

import json
import struct
import threading
from typing import Any

import httpx2
import pytest
from server_harness import Harness

from bellglass.server.compat.e2b.envd import streams

STREAM = "application/connect+json"


def started(harness: Harness, box: dict[str, Any], answers: list[httpx2.Response]) -> threading.Thread:
    """A Start in a thread; its answer is put into the list."""
    body = json.dumps({"process": {"cmd": "true"}}).encode()
    headers = {
        "content-type": STREAM, "e2b-sandbox-id": box["sandboxID"], "e2b-sandbox-port": "49983",
        "x-access-token": box["envdAccessToken"],
    }  # fmt: skip
    client = harness.client(None)

    def ask() -> None:
        framed = struct.pack(">BI", 0, len(body)) + body
        answers.append(client.post("/process.Process/Start", headers=headers, content=framed, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def end_of(answer: httpx2.Response) -> dict[str, Any]:
    """The one message of a stream that has only an end."""
    assert answer.status_code == 200, answer.text
    flags, length = struct.unpack(">BI", answer.content[:5])
    assert flags == 2 and len(answer.content) == 5 + length, answer.content
    return dict(json.loads(answer.content[5:])["error"])


def test_a_start_whose_node_died_before_it_began_is_unavailable(
    own_harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not `not_found`: it is to be sent again. While it waited for its turn the node had stored nothing of it."""
    monkeypatch.setattr(streams, "GONE_WITHIN_S", 0.1)
    harness, answers = own_harness, list[httpx2.Response]()
    client = httpx2.Client(
        base_url=harness.url + "/compat/e2b", headers={"x-api-key": harness.key()["secret"]}, timeout=20
    )
    harness._clients.append(client)
    box = client.post("/v2/sandboxes", json={"templateID": "base"}).json()
    harness.hold("execution.create")
    asking = started(harness, box, answers)
    harness.until(lambda: harness.peer.count("execution.create") == 1)
    harness.run(harness.peer.stop())
    harness.run(harness.peer.start())
    asking.join(30)
    assert harness.peer.count("execution.output") == 1 and not harness.peer.executions
    end = end_of(answers[0])
    assert end["code"] == "unavailable" and "send it again" in end["message"]
