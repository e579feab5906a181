"""Events as the API gives them: pages, filters, followers, and refusals out of the node's journal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from server_harness import Harness, error_of

from bellglass.model import now


def refusal(host: str, **more: Any) -> dict[str, Any]:
    found = {"at": now(), "protocol": "dns", "host": host, "address": None, "port": None}
    return {**found, "reason": "name_not_allowed", "rule": "deny", "count": 1, **more}


def make(api: httpx2.Client, **body: Any) -> str:
    answer = api.post("/v1/sandboxes", json={"cpus": 1, **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def tell(harness: Harness, sandbox_id: str, refusals: list[dict[str, Any]], left_out: int = 0) -> None:
    """What a node's journal has of the refusals of a sandbox."""

    async def write() -> None:
        harness.peer.event("egress.refused", sandbox_id, refusals=refusals, left_out=left_out)

    harness.run(write())


def of(api: httpx2.Client, sandbox_id: str, **query: Any) -> list[dict[str, Any]]:
    answer = api.get(f"/v1/sandboxes/{sandbox_id}/events", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_a_sandboxes_life_is_told_in_order(harness: Harness, api: httpx2.Client) -> None:
    box = make(api)
    assert api.put(f"/v1/sandboxes/{box}/network", json={"network": "open"}).status_code == 200
    assert api.delete(f"/v1/sandboxes/{box}").status_code == 204
    found = of(api, box)
    assert types(found[:3]) == ["sandbox.creating", "sandbox.running", "network.changed"]
    assert types(found[3:]) == ["sandbox.stopping", "sandbox.ended"]
    assert found[2]["data"]["network"] == "open"
    assert [event["seq"] for event in found] == sorted({event["seq"] for event in found})
    assert {event["sandbox_id"] for event in found} == {box}


def test_the_first_event_says_what_a_bill_needs(harness: Harness, api: httpx2.Client) -> None:
    """It is read after the sandbox, and what was said of it, are gone."""
    body = {"owner": "4711", "cpus": 0.5, "memory": "1GiB", "disk": "2GiB", "pids": 64}
    owned = api.post("/v1/sandboxes", json=body).json()["id"]
    nobodys = api.post("/v1/sandboxes", json={}).json()["id"]
    for box in (owned, nobodys):
        assert api.delete(f"/v1/sandboxes/{box}").status_code == 204
    first = of(api, owned)[0]["data"]
    assert first["owner"] == "4711" and first["template"] == "base"
    assert first["limits"] == {"cpus": 0.5, "memory_bytes": 1 << 30, "disk_bytes": 2 << 30, "pids": 64}
    assert "owner" not in of(api, nobodys)[0]["data"]


def test_refusals_of_the_journal_are_events_once(harness: Harness, api: httpx2.Client) -> None:
    box = make(api)
    first = refusal("evil.example", count=3)
    second = refusal("db.example", protocol="tcp", port=5432, reason="connect_failed", rule="allow")
    tell(harness, box, [first, second], 7)
    tell(harness, "sb" + "a" * 20, [first])
    harness.until(lambda: harness.peer.acknowledged == len(harness.peer.journal))
    found = of(api, box, type="egress.*")
    assert types(found) == ["egress.refused", "egress.failed", "egress.suppressed"]
    assert found[0]["time"] == first.pop("at")
    assert found[0]["data"] == first
    assert found[2]["data"] == {"count": 7}
    assert not harness.database(f"select * from events where sandbox_id = 'sb{'a' * 20}'")


def test_pages_go_on_where_they_ended(harness: Harness) -> None:
    api = harness.project("own1")
    box = make(api)
    tell(harness, box, [refusal(f"h{i}.example") for i in range(25)])
    harness.until(lambda: len(of(api, box)) == 27)
    hosts, cursor = [], None
    while True:
        query = {"limit": 10, "type": "egress.refused"} | ({"cursor": cursor} if cursor else {})
        page = api.get("/v1/events", params=query).json()
        if not page["items"]:
            break
        hosts += [event["data"]["host"] for event in page["items"]]
        cursor = page["cursor"]
    assert hosts == [f"h{i}.example" for i in range(25)]
    tell(harness, box, [refusal("late.example")])
    harness.until(lambda: api.get("/v1/events", params={"cursor": cursor}).json()["items"])
    tail = api.get("/v1/events", params={"tail": 2}).json()["items"]
    assert [event["data"]["host"] for event in tail] == ["h24.example", "late.example"]


def test_filters_of_the_project(harness: Harness) -> None:
    api = harness.project("own2")
    one, other = make(api, owner="ada", labels={"team": "red"}), make(api, owner="bob")
    all_of = lambda **query: {e["sandbox_id"] for e in api.get("/v1/events", params=query).json()["items"]}  # noqa: E731
    assert all_of() == {one, other}
    assert all_of(owner="ada") == all_of(label="team=red") == all_of(sandbox=one) == {one}
    assert all_of(since="1h") == {one, other}
    assert all_of(since="2999-01-01T00:00:00Z") == set()
    wrong = ({"type": "Egress"}, {"since": "yesterday"}, {"cursor": "x"}, {"tail": 1, "cursor": "5"}, {"limit": 0})
    for query in wrong:
        error_of(api.get("/v1/events", params=query), 422)


def test_events_stay_with_their_project(harness: Harness, api: httpx2.Client) -> None:
    box = make(api)
    stranger = harness.project("own3")
    unknown = "sb" + "q" * 20
    assert types(of(api, box)) == ["sandbox.creating", "sandbox.running"]
    answers = []
    for id in (box, unknown, "nonsense"):
        of_it = f"/v1/sandboxes/{id}/events"
        for path in (of_it, f"{of_it}?follow=true", f"/v1/events?sandbox={id}"):
            error = error_of(stranger.get(path), 404)
            error.pop("request_id")
            answers.append(json.dumps(error))
    assert len(set(answers)) == 1
    assert stranger.get("/v1/events").json()["items"] == []
    assert api.delete(f"/v1/sandboxes/{box}").status_code == 204
    assert "sandbox.ended" in types(of(api, box))
    error_of(stranger.get(f"/v1/sandboxes/{box}/events"), 404)


@pytest.fixture
def quick(tmp_path: Any) -> Iterator[Harness]:
    harness = Harness(tmp_path / "data", {"server.keepalive": 0.3}).start()
    yield harness
    harness.stop()


def test_a_follower_gets_what_was_and_what_comes(quick: Harness) -> None:
    api = quick.project()
    box = make(api)
    with api.stream("GET", f"/v1/sandboxes/{box}/events", params={"follow": "true"}) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = answer.iter_lines()
        assert types([json.loads(next(lines)) for _ in range(2)]) == ["sandbox.creating", "sandbox.running"]
        assert next(lines) == ""  # nothing happens
        tell(quick, box, [refusal("evil.example")])
        told = next(line for line in lines if line)
        assert json.loads(told)["data"]["host"] == "evil.example"
        other = make(api)
        tell(quick, box, [refusal("again.example")])
        told = next(line for line in lines if line)
        assert json.loads(told)["data"]["host"] == "again.example", f"an event of {other}"


def test_a_revoked_key_ends_its_followers(quick: Harness) -> None:
    admin = quick.client("bgadmin_" + "a" * 32)
    key = admin.post("/v1/keys", json={"project": "p9"}).json()
    api = quick.client(key["secret"])
    with api.stream("GET", "/v1/events", params={"follow": "true"}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ""
        assert admin.delete(f"/v1/keys/{key['id']}").status_code == 204
        with pytest.raises(httpx2.RemoteProtocolError):
            list(lines)


def test_numbers_never_go_back(own_harness: Harness) -> None:
    box = make(own_harness.project())
    own_harness.stop()
    database = own_harness.data.database_file
    copy = database.read_bytes()
    later = own_harness.again()
    make(later.project())
    newest = later.database("select max(seq) from events")[0][0]
    later.stop()
    database.write_bytes(copy)
    restored = later.again()
    try:
        assert len(restored.database(f"select * from events where seq <= {newest}")) == 2, "it is not the older one"
        assert [event["seq"] > newest for event in of(restored.project(), make(restored.project()))] == [True, True]
        assert types(of(restored.project(), box)) == ["sandbox.creating", "sandbox.running"]
    finally:
        restored.stop()
