"""A sandbox from create to its end: states, names, labels, pages, idempotency, lifetimes, reasons, and 410 after."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from bellglass.errors import Conflict, NotFound, SandboxGone
from bellglass.model import parse_time

SMALL = {"cpus": 1, "memory": "256MiB", "disk": "512MiB"}


def ended(api: httpx2.Client, identity: str, deadline_s: float = 10) -> dict[str, Any]:
    """The record once the state is final."""
    deadline = time.monotonic() + deadline_s
    while True:
        record = api.get(f"/v1/sandboxes/{identity}").json()
        if record["state"] in ("ended", "failed"):
            return record
        assert time.monotonic() < deadline, record
        time.sleep(0.1)


def test_defaults_are_stated(stack: Any, no_leak: None) -> None:
    with stack.sandbox() as box:
        info = box.info()
        assert (info.state, info.template, info.cpus, info.memory_bytes) == ("running", "base", 2, 4 << 30)
        assert (info.disk_bytes, info.pids, info.lifetime_s, info.idle_timeout_s) == (10 << 30, 512, 600, None)
        assert (info.user, info.workdir, info.network, info.tier) == ("user", "/home/user", "deny", "container")
        assert info.runtime == "runc" and info.runtime_version and info.generation == 1
        lived = parse_time(info.expires_at) - parse_time(info.started_at)
        assert 599 < lived.total_seconds() < 601


def test_delete_is_final_and_repeatable(new_box: Callable[..., Any], api: httpx2.Client) -> None:
    box = new_box()
    started = time.monotonic()
    assert api.delete(f"/v1/sandboxes/{box.id}").status_code == 204
    assert time.monotonic() - started < 1
    assert api.get(f"/v1/sandboxes/{box.id}").status_code == 404
    assert api.delete(f"/v1/sandboxes/{box.id}").status_code in (204, 404)
    with pytest.raises(NotFound):
        box.exec(["true"])
    with pytest.raises(NotFound):
        box.files.read_text("/etc/passwd")


def test_a_delete_during_an_execution_ends_it(new_box: Callable[..., Any], api: httpx2.Client) -> None:
    box = new_box()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(box.exec, ["sleep", "60"])
        deadline = time.monotonic() + 5
        while not list(box.executions(state="running")):
            assert time.monotonic() < deadline
        api.delete(f"/v1/sandboxes/{box.id}")
        error = waiting.exception(timeout=10)
    assert error is not None, "a killed execution is no success"


def test_lifetime_ends_it_with_a_reason(new_box: Callable[..., Any], api: httpx2.Client) -> None:
    box = new_box(lifetime="2s")
    busy = box.start(["sleep", "100"])
    record = ended(api, box.id)
    assert (record["state"], record["termination_reason"]) == ("ended", "lifetime")
    lived = parse_time(record["ended_at"]) - parse_time(record["started_at"])
    assert 1.9 < lived.total_seconds() < 4
    for call in (lambda: box.exec(["true"]), lambda: box.files.read_text("x"), lambda: box.update(lifetime="1m")):
        with pytest.raises(SandboxGone) as raised:
            call()
        assert raised.value.details["reason"] == "lifetime" and raised.value.details["ended_at"]
    assert busy.status().state == "lost", "its records stay readable"
    assert box.info().termination_reason == "lifetime"


def test_lifetime_is_counted_anew_by_an_update(new_box: Callable[..., Any]) -> None:
    box = new_box(lifetime="3s")
    updated = box.update(lifetime="10m", labels={"kept": "yes"})
    assert (updated.lifetime_s, updated.labels) == (600, {"kept": "yes"})
    time.sleep(3.5)
    assert box.exec(["echo", "alive"]).stdout == "alive\n"


def test_idle_ends_only_what_is_idle(new_box: Callable[..., Any], api: httpx2.Client) -> None:
    idle, busy, detached = (new_box(idle_timeout="2s") for _ in range(3))
    detached.start(["sleep", "30"])
    assert busy.exec(["sleep", "4"]).ok, "an execution that says nothing is activity"
    assert detached.exec(["true"]).ok, "so is a detached one"
    record = ended(api, idle.id, 2)
    assert (record["state"], record["termination_reason"]) == ("ended", "idle")


def test_names(new_box: Callable[..., Any], stack: Any) -> None:
    name = f"name-{secrets.token_hex(4)}"
    box = new_box(name=name)
    assert box.info().name == name
    with pytest.raises(Conflict, match=name):
        new_box(name=name)
    connection = {"api_url": stack.api_url, "api_key": stack.api_key}
    again = type(box).get_or_create("base", name=name, **connection)
    assert again.id == box.id
    again.close()
    box.delete()
    fresh = type(box).get_or_create("base", name=name, **SMALL, **connection)
    assert fresh.id != box.id
    fresh.delete()
    with ThreadPoolExecutor(5) as pool:
        made = list(
            pool.map(lambda _: type(box).get_or_create("base", name=name + "x", **SMALL, **connection), range(5))
        )
    assert len({one.id for one in made}) == 1, "five at once get the same one"
    made[0].delete()
    for one in made[1:]:
        one.close()


def test_filters_and_pages(new_box: Callable[..., Any], api: httpx2.Client) -> None:
    group = secrets.token_hex(4)
    boxes = [new_box(owner=f"owner-{n % 2}", labels={"group": group, "n": str(n)}) for n in range(4)]

    def ids(**params: Any) -> set[str]:
        return {item["id"] for item in api.get("/v1/sandboxes", params=params).json()["items"]}

    assert ids(label=f"group={group}") == {box.id for box in boxes}
    assert ids(label=[f"group={group}", "n=2"]) == {boxes[2].id}
    assert ids(label=f"group={group}", owner="owner-1") == {boxes[1].id, boxes[3].id}
    assert ids(label=f"group={group}", state="ended") == set()
    seen, cursor = [], None
    while True:
        params = {"label": f"group={group}", "limit": 3} | ({"cursor": cursor} if cursor else {})
        page = api.get("/v1/sandboxes", params=params).json()
        assert len(page["items"]) <= 3
        seen += [item["id"] for item in page["items"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(box.id for box in boxes)
    assert api.get("/v1/sandboxes", params={"cursor": "nonsense"}).status_code == 422


def test_idempotency_key(api: httpx2.Client, new_box: Callable[..., Any]) -> None:
    key = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"template": "base", **SMALL}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: api.post("/v1/sandboxes", json=body, headers=key), range(4)))
    assert {answer.status_code for answer in answers} == {201}, [answer.text for answer in answers]
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = api.post("/v1/sandboxes", json={**body, "cpus": 2}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
    api.delete(f"/v1/sandboxes/{answers[0].json()['id']}")


def test_inputs_are_there_and_read_only(new_box: Callable[..., Any]) -> None:
    box = new_box(inputs={"data.csv": "a,b\n", "sub/raw.bin": b"\0\xff", "é": "☕"})
    assert box.exec(["cat", "/inputs/data.csv", "/inputs/é"]).stdout == "a,b\n☕"
    assert box.files.read_bytes("/inputs/sub/raw.bin") == b"\0\xff"
    for user in ("user", "root"):
        refused = box.exec("echo x > /inputs/data.csv; rm /inputs/data.csv; touch /inputs/new", user=user)
        assert refused.exit_code != 0 and refused.stderr.count("Read-only file system") >= 2
    assert box.exec(["cat", "/inputs/data.csv"]).stdout == "a,b\n"


def test_another_project_sees_nothing(new_box: Callable[..., Any], second_key: str, api: httpx2.Client) -> None:
    """Every route answers for another project's sandbox as for one that never was."""
    box = new_box(name=f"secret-{secrets.token_hex(3)}")
    execution = box.start(["sleep", "20"])
    unknown = "sb" + "a" * 20
    other = {"Authorization": f"Bearer {second_key}"}
    routes = [
        ("GET", ""), ("PATCH", ""), ("GET", "/executions"), ("POST", "/executions"),
        ("GET", f"/executions/{execution.id}"), ("GET", f"/executions/{execution.id}/output"),
        ("POST", f"/executions/{execution.id}/stdin"), ("POST", f"/executions/{execution.id}/signal"),
        ("GET", "/files?path=/etc/passwd"), ("HEAD", "/files?path=/etc/passwd"), ("PUT", "/files?path=/tmp/x"),
        ("DELETE", "/files?path=/tmp/x"), ("GET", "/files/list?path=/"), ("GET", "/files/stat?path=/"),
        ("POST", "/files/mkdir"), ("POST", "/files/move"), ("GET", "/files/archive?path=/tmp"),
        ("PUT", "/files/archive?path=/tmp"), ("DELETE", ""),
    ]  # fmt: skip
    bodies = {
        "/executions": {"command": "true"},
        "/files/mkdir": {"path": "/tmp/m"},
        "/files/move": {"source": "a", "destination": "b"},
        "": {"labels": {}},
    }
    for method, route in routes:
        body = bodies.get(route) if method in ("POST", "PATCH") else None
        if route.endswith("/signal"):
            body = {"signal": "SIGKILL"}
        answers = []
        for identity in (box.id, unknown):
            answer = api.request(method, f"/v1/sandboxes/{identity}{route}", json=body, headers=other)
            shape = answer.text.replace(identity, "ID")
            if answer.content:
                shape = {**answer.json()["error"], "request_id": None}
                shape = repr(shape).replace(identity, "ID")
            answers.append((answer.status_code, shape))
        assert answers[0] == answers[1], (method, route)
        assert answers[0][0] == 404, (method, route)
    assert execution.status().state == "running" and box.info().state == "running"
    listed = api.get("/v1/sandboxes", params={"state": "all"}, headers=other).json()["items"]
    assert box.id not in {item["id"] for item in listed}
