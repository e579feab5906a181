"""Create, names, idempotency, delete, ends, and what happens while the node is away."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from server_harness import Harness, error_of, make

from bellglass.errors import NoCapacity, SandboxFailed


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


# --- names and idempotency ------------------------------------------------------------------------------------


def test_live_names_are_unique_in_a_project(harness: Harness, api: httpx2.Client) -> None:
    box = make(api, name="one")
    error = error_of(api.post("/v1/sandboxes", json={"name": "one"}), 409, "conflict")
    assert error["details"]["sandbox_id"] == box["id"]
    assert harness.project("other").post("/v1/sandboxes", json={"name": "one"}).status_code == 201
    api.delete(f"/v1/sandboxes/{box['id']}")
    make(api, name="one")


def test_get_or_create_makes_one(harness: Harness, api: httpx2.Client) -> None:
    answers = at_once(8, lambda _: api.post("/v1/sandboxes", json={"name": "shared", "get_or_create": True}))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert {answer.json()["state"] for answer in answers} == {"running"}
    error_of(api.post("/v1/sandboxes", json={"get_or_create": True}), 422)


def test_idempotency_key(harness: Harness, api: httpx2.Client) -> None:
    headers = {"idempotency-key": "k-1"}
    first = api.post("/v1/sandboxes", json={"cpus": 1, "pids": 64}, headers=headers)
    assert first.status_code == 201
    again = api.post("/v1/sandboxes", content=b'{"pids": 64, "cpus": 1}', headers=headers)
    assert (again.status_code, again.json()) == (201, first.json()), "the order of keys is no other body"
    error_of(api.post("/v1/sandboxes", json={"cpus": 2}, headers=headers), 409, "idempotency_conflict")
    elsewhere = harness.project("other").post("/v1/sandboxes", json={"cpus": 2}, headers=headers)
    assert elsewhere.status_code == 201, "keys belong to their project"
    for key in ("", "x" * 256, "tab\there"):
        error_of(api.post("/v1/sandboxes", json={}, headers={"idempotency-key": key}), 422)
    assert api.post("/v1/sandboxes", json={}, headers={"idempotency-key": "x" * 255}).status_code == 201


def test_idempotency_key_in_flight(harness: Harness, api: httpx2.Client) -> None:
    before = harness.peer.count("sandbox.create")
    release = harness.hold("sandbox.create")
    with ThreadPoolExecutor(4) as pool:
        headers = {"idempotency-key": "k-flight"}
        waiting = [pool.submit(api.post, "/v1/sandboxes", json={"cpus": 1}, headers=headers) for _ in range(3)]
        harness.until(lambda: harness.peer.count("sandbox.create") == before + 1)
        error_of(api.post("/v1/sandboxes", json={"cpus": 2}, headers=headers), 409, "idempotency_conflict")
        release()
        answers = [done.result(10) for done in waiting]
    assert [answer.status_code for answer in answers] == [201] * 3
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert harness.peer.count("sandbox.create") == before + 1


def test_no_capacity_leaves_nothing_and_frees_the_key(harness: Harness, api: httpx2.Client) -> None:
    headers = {"idempotency-key": "k-full"}
    harness.peer.fail["sandbox.create"] = NoCapacity("memory: 4 GiB asked, 1 GiB free", details={"resource": "memory"})
    answer = api.post("/v1/sandboxes", json={"name": "full"}, headers=headers)
    assert error_of(answer, 503, "no_capacity")["details"]["resource"] == "memory"
    assert answer.headers["retry-after"]
    assert api.get("/v1/sandboxes", params={"name": "full", "state": "all"}).json()["items"] == []
    harness.peer.fail.clear()
    assert api.post("/v1/sandboxes", json={"name": "full"}, headers=headers).status_code == 201


def test_a_failed_start_stays_readable(harness: Harness, api: httpx2.Client) -> None:
    headers = {"idempotency-key": "k-fail"}
    harness.peer.fail["sandbox.create"] = SandboxFailed("runc said no")
    error = error_of(api.post("/v1/sandboxes", json={"name": "bad"}, headers=headers), 500, "sandbox_failed")
    url = f"/v1/sandboxes/{error['details']['sandbox_id']}"
    box = api.get(url).json()
    assert (box["state"], box["termination_reason"], box["message"]) == ("failed", "failed", "runc said no")
    gone = error_of(api.post(url + "/executions", json={"command": ["true"]}), 410, "sandbox_gone")
    assert gone["details"]["reason"] == "failed"
    harness.peer.fail.clear()
    again = error_of(api.post("/v1/sandboxes", json={"name": "bad"}, headers=headers), 500, "sandbox_failed")
    assert again["details"]["sandbox_id"] == box["id"], "the stored answer"
    make(api, name="bad")
    assert api.delete(url).status_code == 204
    error_of(api.get(url), 404)


def test_a_client_that_hangs_up_changes_nothing(harness: Harness, api: httpx2.Client) -> None:
    release = harness.hold("sandbox.create")
    with pytest.raises(httpx2.ReadTimeout):
        api.post("/v1/sandboxes", json={"name": "unseen"}, timeout=0.3)
    release()

    def found() -> list[Any]:
        return list(api.get("/v1/sandboxes", params={"name": "unseen"}).json()["items"])

    harness.until(lambda: bool(found()) and found()[0]["state"] == "running")
    release = harness.hold("sandbox.delete")
    with pytest.raises(httpx2.ReadTimeout):
        api.delete(f"/v1/sandboxes/{found()[0]['id']}", timeout=0.3)
    assert found()[0]["state"] == "stopping"
    release()
    harness.until(lambda: not found())


# --- delete and ends ------------------------------------------------------------------------------------------


def test_delete_is_the_same_for_all_who_ask(harness: Harness, api: httpx2.Client) -> None:
    url = f"/v1/sandboxes/{make(api)['id']}"
    before = harness.peer.count("sandbox.delete")
    answers = at_once(10, lambda _: api.delete(url))
    assert {answer.status_code for answer in answers} == {204}
    assert harness.peer.count("sandbox.delete") == before + 1
    error_of(api.get(url), 404)
    error_of(api.patch(url, json={"lifetime": 60}), 404)


def test_delete_during_create(harness: Harness, api: httpx2.Client) -> None:
    release = harness.hold("sandbox.create")
    with ThreadPoolExecutor(2) as pool:
        creating = pool.submit(api.post, "/v1/sandboxes", json={"name": "torn"})
        listed = lambda: api.get("/v1/sandboxes", params={"name": "torn"}).json()["items"]  # noqa: E731
        harness.until(lambda: bool(listed()))
        box = listed()[0]
        assert box["state"] == "creating"
        url = f"/v1/sandboxes/{box['id']}"
        assert (
            error_of(api.post(url + "/executions", json={"command": ["true"]}), 409)["details"]["state"] == "creating"
        )
        deleting = pool.submit(api.delete, url)
        harness.until(lambda: api.get(url).json()["state"] == "stopping")
        error_of(api.post(url + "/executions", json={"command": ["true"]}), 410, "sandbox_gone")
        release()
        assert deleting.result(10).status_code == 204
        error_of(creating.result(10), 410, "sandbox_gone")
    error_of(api.get(url), 404)
    assert box["id"] not in harness.peer.sandboxes


def test_one_that_ends_by_itself_stays_readable(harness: Harness, api: httpx2.Client) -> None:
    box = make(api, labels={"a": "b"})
    url = f"/v1/sandboxes/{box['id']}"
    harness.peer.executions[box["id"], "0" * 26] = {"id": "0" * 26}
    harness.end(box["id"], "lifetime")
    harness.until(lambda: api.get(url).json()["state"] == "ended")
    ended = api.get(url).json()
    assert ended["termination_reason"] == "lifetime"
    assert ended["ended_at"]
    for method, path, body in (
        ("POST", "/executions", {"command": ["true"]}),
        ("GET", "/files?path=x", None),
        ("PUT", "/files?path=x", None),
        ("POST", "/files/mkdir", {"path": "x"}),
        ("PATCH", "", {"labels": {}}),
    ):
        error = error_of(api.request(method, url + path, json=body), 410, "sandbox_gone")
        assert error["details"] == {"sandbox_id": box["id"], "reason": "lifetime", "ended_at": ended["ended_at"]}
    assert api.get(url + "/executions/" + "0" * 26).status_code == 200, "records outlive the sandbox"
    assert box["id"] not in [item["id"] for item in api.get("/v1/sandboxes").json()["items"]]
    assert box["id"] in [item["id"] for item in api.get("/v1/sandboxes?state=ended").json()["items"]]
    assert api.delete(url).status_code == 204
    error_of(api.get(url), 404)
    assert api.delete(url).status_code == 204


def test_journal_is_taken_in_exactly_once(harness: Harness, api: httpx2.Client) -> None:
    box = make(api)
    harness.end(box["id"], "oom")
    harness.until(lambda: harness.peer.acknowledged == len(harness.peer.journal) > 0)
    assert harness.database("select seq from node_cursors") == [(len(harness.peer.journal),)]
    harness.run(harness.peer.stop())
    harness.until(lambda: harness.health()["node"] == "down")
    harness.run(harness.peer.start())
    harness.until(lambda: harness.health()["node"] == "up")
    harness.until(lambda: harness.peer.params("journal.follow")["after"] == len(harness.peer.journal))
    ends = f"select count(*) from events where type = 'sandbox.ended' and sandbox_id = '{box['id']}'"
    assert harness.database(ends) == [(1,)]


def test_update(harness: Harness, api: httpx2.Client) -> None:
    box = make(api, labels={"a": "1"}, idle_timeout="5m")
    url = f"/v1/sandboxes/{box['id']}"
    changed = api.patch(url, json={"labels": {"b": "2"}}).json()
    assert (changed["labels"], changed["idle_timeout_s"]) == ({"b": "2"}, 300.0)
    changed = api.patch(url, json={"lifetime": "1h"}).json()
    assert (changed["lifetime_s"], changed["expires_at"]) == (3600.0, "2030-01-01T00:00:00.000000Z")
    assert harness.peer.params("sandbox.update")["clear_idle"] is False
    changed = api.patch(url, json={"idle_timeout": None}).json()
    assert changed["idle_timeout_s"] is None
    assert harness.peer.params("sandbox.update")["clear_idle"] is True
    assert api.get(url).json() == changed
    for body in (
        {"lifetime": 0},
        {"lifetime": "31d"},
        {"idle_timeout": -1},
        {"labels": {"bellglass.x": "1"}},
        {"name": "x"},
    ):
        error_of(api.patch(url, json=body), 422)
    assert api.get(url).json() == changed
    assert [item["id"] for item in api.get("/v1/sandboxes?label=b=2").json()["items"]] == [box["id"]]
    assert api.get("/v1/sandboxes?label=a=1").json()["items"] == []


# --- lists ----------------------------------------------------------------------------------------------------


def test_filters_and_pages(harness: Harness) -> None:
    api = harness.project("lists")
    boxes = [make(api, owner=f"o{i % 2}", labels={"n": str(i), "all": "y"}, name=f"box-{i}") for i in range(7)]
    ids = [box["id"] for box in reversed(boxes)]
    assert [item["id"] for item in api.get("/v1/sandboxes").json()["items"]] == ids, "newest first"
    seen, cursor = [], None
    while True:
        page = api.get("/v1/sandboxes", params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        seen += [item["id"] for item in page["items"]]
        if page["cursor"] is None:
            break
        if len(seen) == 3:
            make(api)  # a new one in between shifts nothing
        cursor = page["cursor"]
    assert seen == ids
    assert len(api.get("/v1/sandboxes?owner=o1").json()["items"]) == 3
    assert [item["id"] for item in api.get("/v1/sandboxes?name=box-4").json()["items"]] == [boxes[4]["id"]]
    assert [item["id"] for item in api.get("/v1/sandboxes?label=n=3&label=all=y").json()["items"]] == [boxes[3]["id"]]
    assert api.get("/v1/sandboxes?label=n=3&label=all=n").json()["items"] == []
    assert api.get("/v1/sandboxes?state=ended").json()["items"] == []
    assert len(api.get("/v1/sandboxes?state=all").json()["items"]) == 8
    assert harness.project("stranger").get("/v1/sandboxes?state=all").json()["items"] == []


# --- the node away --------------------------------------------------------------------------------------------


def test_node_down(own_harness: Harness) -> None:
    harness, api = own_harness, own_harness.project()
    box, url = (found := make(api)), f"/v1/sandboxes/{found['id']}"
    harness.run(harness.peer.stop())
    harness.until(lambda: harness.health()["node"] == "down")
    for answer in (
        api.post("/v1/sandboxes", json={}),
        api.post(url + "/executions", json={"command": ["true"]}),
        api.get(url + "/files?path=x"),
        api.get("/v1/templates"),
        harness.admin.get("/v1/node"),
        api.delete(url),
    ):
        error = error_of(answer, 503, "node_unavailable")
        assert error["retryable"]
        assert error["hint"]
    assert api.get(url).json()["state"] == "stopping", "the delete is stored"
    assert len(api.get("/v1/sandboxes").json()["items"]) == 1
    harness.run(harness.peer.start())
    harness.until(lambda: api.get(url).status_code == 404)
    assert box["id"] not in harness.peer.sandboxes


def test_a_create_outlives_a_break_of_the_link(own_harness: Harness) -> None:
    harness, api = own_harness, own_harness.project()
    release = harness.hold("sandbox.create")
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(api.post, "/v1/sandboxes", json={"inputs": {"a": {"text": "x"}}})
        harness.until(lambda: harness.peer.count("sandbox.create") == 1)
        harness.run(harness.peer.stop())
        release()
        harness.run(harness.peer.start())
        answer = creating.result(15)
    assert answer.status_code == 201, answer.text
    assert harness.peer.count("sandbox.create") == 2
    assert len(harness.peer.sandboxes) == 1


def test_what_a_dead_server_left_open_is_settled(tmp_path: Any) -> None:
    harness = Harness(tmp_path / "data").start()
    api = harness.project()
    ids = [make(api)["id"] for _ in range(5)]
    key = harness.key()["secret"]
    harness.stop()
    import sqlite3

    connection = sqlite3.connect(harness.data.database_file)
    states = ("creating", "creating", "stopping", "running", "running")
    for sandbox_id, state in zip(ids, states, strict=True):
        connection.execute("update sandboxes set state = ? where id = ?", (state, sandbox_id))
    connection.commit()
    connection.close()
    del harness.peer.sandboxes[ids[1]]  # the node never got it
    harness.peer.event("sandbox.ended", ids[4], reason="idle", ended_at="2026-01-01T00:00:00.000000Z")
    harness.start()
    api = harness.client(key)
    try:
        state = lambda n: api.get(f"/v1/sandboxes/{ids[n]}").json().get("state")  # noqa: E731
        harness.until(lambda: (state(0), state(1), state(3), state(4)) == ("running", "failed", "running", "ended"))
        harness.until(lambda: api.get(f"/v1/sandboxes/{ids[2]}").status_code == 404)
        assert ids[2] not in harness.peer.sandboxes
    finally:
        harness.stop()


def test_old_things_are_forgotten(own_harness: Harness) -> None:
    from datetime import UTC, datetime, timedelta

    from bellglass.server.sandboxes.loop import Forgetter

    harness, api = own_harness, own_harness.project()
    kept, ended = make(api), make(api, labels={"a": "b"})
    api.post("/v1/sandboxes", json={}, headers={"idempotency-key": "old"})
    harness.end(ended["id"], "idle")
    harness.until(lambda: api.get(f"/v1/sandboxes/{ended['id']}").json()["state"] == "ended")
    forgetter = Forgetter(harness.application.services.writer, 7 * 86400.0, 86400.0)
    harness.run(forgetter.forget(datetime.now(UTC) + timedelta(hours=23)))
    assert api.get(f"/v1/sandboxes/{ended['id']}").status_code == 200
    assert harness.database("select count(*) from idempotency_keys") == [(1,)]
    harness.run(forgetter.forget(datetime.now(UTC) + timedelta(days=8)))
    error_of(api.get(f"/v1/sandboxes/{ended['id']}"), 404)
    assert api.get(f"/v1/sandboxes/{kept['id']}").status_code == 200
    assert harness.database("select count(*) from idempotency_keys") == [(0,)]
    assert harness.database("select count(*) from sandbox_labels") == [(0,)]


def test_many_creates_at_once(harness: Harness, api: httpx2.Client) -> None:
    answers = at_once(20, lambda _: api.post("/v1/sandboxes", json={"cpus": 1}))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 20


def test_a_delete_that_the_node_fails_is_tried_again(own_harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    from bellglass.errors import InternalError
    from bellglass.server.sandboxes import loop

    monkeypatch.setattr(loop, "SETTLE_EVERY_S", 0.1)
    harness, api = own_harness, own_harness.project()
    harness.run(harness.peer.stop())
    harness.run(harness.peer.start())  # the loop that is under way still has the long pause
    harness.until(lambda: harness.health()["node"] == "up")
    url = f"/v1/sandboxes/{make(api)['id']}"
    harness.peer.fail["sandbox.delete"] = InternalError("the helper said no")
    error_of(api.delete(url), 500, "internal")
    assert api.get(url).json()["state"] == "stopping"
    harness.peer.fail.clear()
    harness.until(lambda: api.get(url).status_code == 404)


def test_a_failed_start_that_the_journal_tells_first(harness: Harness, api: httpx2.Client) -> None:
    release = harness.hold("sandbox.create")
    harness.peer.fail["sandbox.create"] = SandboxFailed("the agent never said hello")
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(api.post, "/v1/sandboxes", json={"name": "early"})
        listed = lambda: api.get("/v1/sandboxes?name=early&state=all").json()["items"]  # noqa: E731
        harness.until(lambda: bool(listed()))
        sandbox_id = listed()[0]["id"]

        async def tell() -> None:
            harness.peer.event("sandbox.ended", sandbox_id, reason="failed", ended_at="2026-01-01T00:00:00.000000Z")

        harness.run(tell())
        harness.until(lambda: listed()[0]["state"] == "ended")
        release()
        error_of(creating.result(10), 500, "sandbox_failed")
    assert listed()[0]["state"] == "failed"
    assert listed()[0]["message"] == "the agent never said hello"


def test_revoked_in_mid_upload(harness: Harness) -> None:
    import time

    key = harness.key("mid-upload")
    client = harness.client(key["secret"])
    url = f"/v1/sandboxes/{make(client)['id']}/files"
    began, before = time.monotonic(), harness.peer.count("file.write")

    def pieces() -> Any:
        yield b"x" * 100_000
        harness.until(lambda: harness.peer.count("file.write") == before + 1)
        assert harness.admin.delete(f"/v1/keys/{key['id']}").status_code == 204
        yield b"x" * 100_000

    error_of(client.put(url, params={"path": "cut"}, content=pieces()), 401, "unauthorized")
    assert time.monotonic() - began < 5
    assert "cut" not in harness.peer.files
