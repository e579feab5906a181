"""Executions as the server sees them: settled specs, formats, streams passed through, clients that leave."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import httpx2
import pytest
from server_harness import Harness, error_of

from bellglass.errors import AgentLost, InvalidCommand, NotAcceptable
from bellglass.ids import new_ulid
from bellglass.server.executions.validate import choose_format


@pytest.fixture(scope="module")
def url(api: httpx2.Client) -> str:
    answer = api.post("/v1/sandboxes", json={"env": {"LANG": "de", "A": "1"}})
    return f"/v1/sandboxes/{answer.json()['id']}/executions"


def sent(harness: Harness) -> dict[str, Any]:
    return harness.peer.params("execution.create")


def test_defaults_are_settled(harness: Harness, api: httpx2.Client, url: str) -> None:
    assert api.post(url, json={"command": "echo hi"}).status_code == 200
    params = sent(harness)
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", params["execution_id"])
    assert params["accept"] == "json"
    spec = params["spec"]
    assert (spec["command"], spec["cwd"], spec["user"], spec["timeout_s"]) == ("echo hi", "/home/user", "user", 300.0)
    assert spec["env"] == {"PATH": "/usr/bin:/bin", "LANG": "de", "A": "1"}, "the sandbox's over the template's"
    assert (
        api.post(
            url, json={"command": ["x"], "env": {"A": "2"}, "cwd": "/tmp", "user": "0", "timeout": "2m"}
        ).status_code
        == 200
    )
    spec = sent(harness)["spec"]
    assert (spec["env"]["A"], spec["cwd"], spec["user"], spec["timeout_s"]) == ("2", "/tmp", "0", 120.0)


def test_tags_and_filters_reach_the_node(harness: Harness, api: httpx2.Client, url: str) -> None:
    tag = "\u00e4" * 128
    assert api.post(url, json={"command": ["x"], "detach": True, "tag": tag}).status_code == 201
    assert sent(harness)["spec"]["tag"] == tag
    assert api.get(url, params={"tag": tag, "state": "running", "pid": 7}).status_code == 200
    wanted = harness.peer.params("execution.list")
    assert (wanted["tag"], wanted["state"], wanted["pid"]) == (tag, "running", 7)
    error_of(api.get(url, params={"tag": ""}), 422, "invalid_request")
    error_of(api.get(url, params={"pid": "0"}), 422, "invalid_request")


def test_detached(harness: Harness, api: httpx2.Client, url: str) -> None:
    mine = new_ulid()
    answer = api.post(url, json={"id": mine, "command": ["sleep", "1"], "detach": True})
    assert answer.status_code == 201
    assert (answer.json()["id"], answer.json()["timeout_s"]) == (mine, None)
    assert api.get(f"{url}/{mine}").json()["id"] == mine
    assert mine in [item["id"] for item in api.get(url).json()["items"]]
    assert api.post(url, json={"command": ["x"], "detach": True, "timeout": "2h"}).json()["timeout_s"] == 7200.0
    error_of(api.post(url, json={"id": mine, "command": ["other"]}), 409, "conflict")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        *[({"command": value}, "invalid_command", "command") for value in ([], "", "  ", [""], ["a", "b\0"], "a\0b")],
        *[({"command": value}, "invalid_request", "command") for value in (None, 5, [1], {"a": 1}, [["a"]])],
        ({}, "invalid_request", "command"),
        *[({"cwd": value}, "invalid_command", "cwd") for value in ("", "a\0b", "/" + "a" * 4096)],
        *[({"user": value}, "invalid_command", "user") for value in ("", "a b", "x\0", "99999999999")],
        *[({"timeout": value}, "invalid_request", "timeout") for value in (0, -1, "x", 601, "11m", 1e300, "", True)],
        *[({"env": {key: "x"}}, "invalid_request", "env") for key in ("", "A=B", "A\0")],
        ({"env": {"A": "\0"}}, "invalid_request", "env.A"),
        ({"id": "x"}, "invalid_request", "id"),
        ({"id": "0" * 25 + "I"}, "invalid_request", "id"),
        ({"stdin": "x" * (512 * 1024 + 1)}, "invalid_request", "stdin"),
        ({"stdin": {"b64": "!"}}, "invalid_request", "stdin.b64"),
        ({"stdin": {}}, "invalid_request", "stdin"),
        ({"stdin": "x", "stdin_open": True}, "invalid_request", "stdin_open"),
        *[({"tag": value}, "invalid_request", "tag") for value in ("", "a\0", "x" * 257, "\u00e4" * 129, 5)],
        ({"cmd": ["x"]}, "invalid_request", "cmd"),
    ],
)  # fmt: skip
def test_refused(harness: Harness, api: httpx2.Client, url: str, body: Any, code: str, field: str) -> None:
    before = harness.peer.count("execution.create")
    if body and "command" not in body:
        body = {"command": ["true"], **body}
    error = error_of(api.post(url, json=body), 422, code)
    assert error["details"]["field"].startswith(field), error
    assert harness.peer.count("execution.create") == before


def test_long_waits_name_start(api: httpx2.Client, url: str) -> None:
    assert api.post(url, json={"command": ["x"], "timeout": 600}).status_code == 200
    error = error_of(api.post(url, json={"command": ["x"], "timeout": 601}), 422)
    assert "start" in error["hint"]
    assert "detach" in error["hint"]


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, "json"), ("", "json"), ("*/*", "json"), ("application/*", "json"), ("application/json", "json"),
        ("application/x-ndjson", "ndjson"), ("application/x-bellglass-frames, */*", "frames"),
        ("text/html, application/x-ndjson;q=0.5", "ndjson"), ("APPLICATION/JSON", "json"),
        ("application/x-ndjson;q=0, application/json", "json"),
    ],
)  # fmt: skip
def test_formats(accept: str | None, chosen: str) -> None:
    assert choose_format(accept) == chosen


def test_formats_that_are_none(api: httpx2.Client, url: str) -> None:
    for accept in ("text/html", "application/jsonx", "*", ";;;", ",", "application/json;q=0"):
        with pytest.raises(NotAcceptable):
            choose_format(accept)
    error_of(api.post(url, json={"command": ["x"]}, headers={"accept": "text/html"}), 406, "not_acceptable")


def test_errors_of_the_node_before_its_head(harness: Harness, api: httpx2.Client, url: str) -> None:
    harness.peer.fail["execution.create"] = InvalidCommand("cwd: '/nope' is no folder", details={"field": "cwd"})
    error = error_of(api.post(url, json={"command": ["x"], "cwd": "/nope"}), 422, "invalid_command")
    assert error["details"]["field"] == "cwd"
    harness.peer.fail["execution.create"] = AgentLost("the agent does not answer")
    assert error_of(api.post(url, json={"command": ["x"]}), 503, "agent_lost")["retryable"]


def test_bytes_pass_through(harness: Harness, api: httpx2.Client, url: str) -> None:
    headers = {"accept": "application/x-bellglass-frames"}
    with api.stream("POST", url, json={"command": ["flood"]}, headers=headers) as answer:
        assert answer.headers["content-type"] == "application/x-bellglass-frames"
        assert sum(len(chunk) for chunk in answer.iter_bytes()) == 64 * 262144
    assert sent(harness)["accept"] == "frames"


def test_a_client_that_leaves_resets_the_stream(harness: Harness, api: httpx2.Client, url: str) -> None:
    for command in ("stream", "hang"):
        harness.peer.reset_streams.clear()
        with pytest.raises(httpx2.ReadTimeout):
            with api.stream("POST", url, json={"command": [command]}, timeout=0.3) as answer:
                for line in answer.iter_lines():
                    assert json.loads(line)["text"] == "on"
        harness.until(lambda: harness.peer.reset_streams == ["execution.create"])


def test_a_broken_link_cuts_the_answer(own_harness: Harness) -> None:
    harness, api = own_harness, own_harness.project()
    box = api.post("/v1/sandboxes", json={}).json()
    with api.stream("POST", f"/v1/sandboxes/{box['id']}/executions", json={"command": ["stream"]}) as answer:
        lines = answer.iter_lines()
        assert next(lines)
        harness.run(harness.peer.stop())
        with pytest.raises(httpx2.RemoteProtocolError):
            next(lines)
    assert harness.peer.reset_streams == [], "the link broke: nobody hung up"


def test_a_stopping_server_is_no_client_that_left(tmp_path: Any) -> None:
    import time

    harness = Harness(tmp_path / "data").start()
    api = harness.project()
    box = api.post("/v1/sandboxes", json={}).json()
    cut = threading.Event()
    began = threading.Event()

    def read() -> None:
        try:
            with api.stream("POST", f"/v1/sandboxes/{box['id']}/executions", json={"command": ["stream"]}) as answer:
                for _ in answer.iter_lines():
                    began.set()
        except httpx2.TransportError:
            cut.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(5)
    started = time.monotonic()
    harness.stop()
    assert time.monotonic() - started < 2
    assert cut.wait(2)
    reader.join(5)
    assert "execution.create" not in harness.peer.reset_streams, "the node would kill it"


def test_stdin_and_signals(harness: Harness, api: httpx2.Client, url: str) -> None:
    mine = api.post(url, json={"command": ["cat"], "stdin_open": True, "detach": True}).json()["id"]
    answer = api.post(f"{url}/{mine}/stdin", content=b"x" * 3_000_000)
    assert answer.json() == {"written": 3_000_000, "offset": 3_000_000}
    assert (harness.peer.params("execution.stdin")["eof"], harness.peer.params("execution.stdin")["offset"]) == (
        False, None,
    )  # fmt: skip
    assert api.post(f"{url}/{mine}/stdin?eof=true&offset=7").json() == {"written": 0, "offset": 7}
    assert (harness.peer.params("execution.stdin")["eof"], harness.peer.params("execution.stdin")["offset"]) == (
        True, 7,
    )  # fmt: skip
    for wrong in ("-1", "x", str(2**63)):
        error_of(api.post(f"{url}/{mine}/stdin?offset={wrong}"), 422, "invalid_request")
    for name in ("SIGTERM", "TERM", "term", 15):
        assert api.post(f"{url}/{mine}/signal", json={"signal": name}).status_code == 204
        assert harness.peer.params("execution.signal")["signal"] == "SIGTERM"
    assert harness.peer.params("execution.signal")["scope"] == "tree"
    for body in ({"signal": "SIGNOPE"}, {"signal": 0}, {"signal": 65}, {"signal": -1}, {"signal": ""}, {},
                 {"signal": "TERM", "scope": "all"}, {"signal": True}):  # fmt: skip
        error_of(api.post(f"{url}/{mine}/signal", json=body), 422)


def test_unknown_executions(harness: Harness, api: httpx2.Client, url: str) -> None:
    bodies = set()
    for unknown in ("0" * 26, "x", "%2e%2e", "0" * 27, "%00", "sb" + "a" * 20):
        for method, path in (("GET", ""), ("GET", "/output"), ("POST", "/stdin"), ("POST", "/signal")):
            body = {"signal": "TERM"} if path == "/signal" else None
            error = error_of(api.request(method, f"{url}/{unknown}{path}", json=body), 404, "not_found")
            bodies.add(json.dumps({**error, "request_id": ""}))
    assert len(bodies) == 1, bodies


def test_lists(api: httpx2.Client, url: str) -> None:
    assert api.get(url, params={"limit": 1}).json()["items"]
    for query in ({"limit": 0}, {"state": "done"}, {"cursor": "x"}, {"cursor": "0" * 27}):
        error_of(api.get(url, params=query), 422)
