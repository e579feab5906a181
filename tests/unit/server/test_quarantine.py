"""Sandboxes that the node has and the database does not know: kept apart, shown, adopted, removed; never on sight."""

from __future__ import annotations

from typing import Any

import pytest
from server_harness import Harness, error_of

from bellglass import ids
from bellglass.model import now
from bellglass.server.sandboxes import loop

OLD = "2026-01-01T00:00:00.000000Z"
NETWORK = {
    "presets": ["pip"], "allow": [{"host": "api.example.com", "cidr": None, "ports": [443], "protocol": "tcp"}],
}  # fmt: skip
SPEC = {
    "template": "base", "template_digest": "ab" * 32, "env": {"A": "1"}, "user": "user", "workdir": "/home/user",
    "cpus": 1.0, "memory_bytes": 2**28, "disk_bytes": 2**30, "inodes": 65536, "pids": 128, "lifetime_s": 600.0,
    "idle_timeout_s": None, "tier": "container", "network": NETWORK, "network_generation": 4, "of_tomorrow": 1,
}  # fmt: skip


@pytest.fixture
def quick(own_harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setattr(loop, "SETTLE_EVERY_S", 0.1)
    monkeypatch.setattr(loop, "JOURNAL_GRACE_S", 0.1)
    own_harness.run(own_harness.peer.stop())
    own_harness.run(own_harness.peer.start())  # the loop that is under way still has the long pause
    own_harness.until(lambda: own_harness.health()["node"] == "up")
    return own_harness


def stranger(harness: Harness, state: str = "running", **more: Any) -> str:
    """A sandbox that no row knows."""
    sandbox_id = ids.new_sandbox_id()
    about = {"name": "lost-1", "owner": "ada", "labels": {"a": "b"}, "created_at": OLD, "template_env": {"T": "1"}}
    item = {
        "sandbox_id": sandbox_id, "generation": 1, "state": state, "runtime": "runc", "runtime_version": "1.1.5",
        "started_at": OLD, "expires_at": "2030-01-01T00:00:00.000000Z", "termination_reason": None, "ended_at": None,
        "disk_kept": False, "project_id": "pjlost", "spec": SPEC, "about": about,
    }  # fmt: skip
    harness.peer.sandboxes[sandbox_id] = item | more
    return sandbox_id


def listed(harness: Harness) -> list[dict[str, Any]]:
    return harness.admin.get("/v1/quarantine").json()["items"]


def audited(harness: Harness, action: str) -> list[Any]:
    return harness.database(f"select objects, project_id from audit where action = '{action}'")


def test_a_stranger_is_kept_apart_told_and_adopted(quick: Harness) -> None:
    known = quick.project("other").post("/v1/sandboxes", json={}).json()["id"]
    sandbox_id = stranger(quick)
    quick.until(lambda: [item["id"] for item in listed(quick)] == [sandbox_id])
    (item,) = listed(quick)
    assert (item["project_id"], item["project_name"], item["state"], item["name"]) == (
        "pjlost",
        None,
        "running",
        "lost-1",
    )
    assert item["removed_at"] > item["quarantined_at"]
    assert "quarantined_at" not in quick.peer.sandboxes[known], "one with a row is left alone"
    quick.until(lambda: len(audited(quick, "sandbox.quarantine")) == 1)
    assert quick.database("select count(*) from events where type = 'sandbox.quarantine'") == [(1,)]
    api = quick.project("mine")
    error_of(api.get(f"/v1/sandboxes/{sandbox_id}"), 404)
    for method, path in (("GET", ""), ("POST", f"/{sandbox_id}/adopt"), ("DELETE", f"/{sandbox_id}")):
        error_of(api.request(method, "/v1/quarantine" + path, json={} if method == "POST" else None), 403, "forbidden")
    error_of(quick.admin.post(f"/v1/quarantine/{sandbox_id}/adopt", json={}), 409, "conflict")
    error_of(quick.admin.post(f"/v1/quarantine/{ids.new_sandbox_id()}/adopt", json={"project": "mine"}), 404)
    adopted = quick.admin.post(f"/v1/quarantine/{sandbox_id}/adopt", json={"project": "mine"})
    assert adopted.status_code == 200, adopted.text
    found = api.get(f"/v1/sandboxes/{sandbox_id}").json()
    assert adopted.json() == found
    assert (found["network"], found["network_generation"]) == (NETWORK, 4), "as the node has it"
    told = ("running", "lost-1", "ada", {"a": "b"}, {"A": "1"}, OLD, "2031-01-01T00:00:00.000000Z")
    assert told == tuple(found[k] for k in ("state", "name", "owner", "labels", "env", "created_at", "expires_at"))
    assert [one["id"] for one in api.get("/v1/sandboxes?label=a=b").json()["items"]] == [sandbox_id]
    assert api.post(f"/v1/sandboxes/{sandbox_id}/executions", json={"command": ["true"]}).status_code == 200
    assert listed(quick) == [] and "quarantined_at" not in quick.peer.sandboxes[sandbox_id]
    assert len(audited(quick, "sandbox.adopted")) == 1
    assert quick.peer.count("sandbox.delete") == 0


@pytest.mark.parametrize("state", ["running", "ended"])
def test_one_that_is_adopted_during_a_comparison_is_no_stranger_again(quick: Harness, state: str) -> None:
    """The comparison saw it before, in quarantine and without a row, and lists it anew behind the adoption."""
    more = {"termination_reason": "node_lost", "ended_at": now(), "disk_kept": True} if state == "ended" else {}
    sandbox_id = stranger(quick, state, **more)
    quick.until(lambda: [item["id"] for item in listed(quick)] == [sandbox_id])
    services = quick.application.services
    assert services is not None
    seen = {sandbox_id: dict(quick.peer.sandboxes[sandbox_id])}
    quick.project("mine")
    assert quick.admin.post(f"/v1/quarantine/{sandbox_id}/adopt", json={"project": "mine"}).status_code == 200
    quick.run(services.quarantine.settle(quick.run(services.cluster.info()), seen, set()))
    assert listed(quick) == [] and "quarantined_at" not in quick.peer.sandboxes[sandbox_id]
    assert len(audited(quick, "sandbox.quarantine")) == 1


def test_a_name_that_is_taken_meanwhile_is_left_out(quick: Harness) -> None:
    api = quick.project("mine")
    assert api.post("/v1/sandboxes", json={"name": "lost-1"}).status_code == 201
    sandbox_id = stranger(quick)
    quick.until(lambda: len(listed(quick)) == 1)
    adopted = quick.admin.post(f"/v1/quarantine/{sandbox_id}/adopt", json={"project": "mine"})
    assert (adopted.status_code, adopted.json()["name"]) == (200, None)


def test_one_that_nobody_wants_is_removed_when_its_time_is_over_and_not_before(quick: Harness) -> None:
    waits, over, by_hand = stranger(quick), stranger(quick, quarantined_at=OLD), stranger(quick)
    quick.until(lambda: over not in quick.peer.sandboxes)
    quick.until(lambda: {item["id"] for item in listed(quick)} == {waits, by_hand})
    assert quick.admin.delete(f"/v1/quarantine/{by_hand}").status_code == 204
    error_of(quick.admin.delete(f"/v1/quarantine/{by_hand}"), 404)
    assert set(quick.peer.sandboxes) == {waits}
    gone = {entry[0] for entry in audited(quick, "sandbox.quarantine_over")}
    assert len(gone) == 2 and all(one in str(gone) for one in (over, by_hand))


def test_a_kept_disk_without_a_row_is_a_stranger_unless_its_retention_is_over(quick: Harness) -> None:
    ended = {"state": "ended", "termination_reason": "node_lost", "disk_kept": True}
    fresh, old = stranger(quick, **ended, ended_at=now()), stranger(quick, **ended, ended_at=OLD)
    reclaimed = stranger(quick, **ended | {"disk_kept": False}, ended_at=now())
    quick.until(lambda: [item["id"] for item in listed(quick)] == [fresh] and old not in quick.peer.sandboxes)
    assert "quarantined_at" not in quick.peer.sandboxes[reclaimed], "nothing is left of it"
    assert audited(quick, "sandbox.quarantine_over") == []
    adopted = quick.admin.post(f"/v1/quarantine/{fresh}/adopt", json={"project": quick.key("p")["project_id"]})
    assert (adopted.status_code, adopted.json()["state"]) == (200, "ended")
    assert adopted.json()["termination_reason"] == "node_lost"


def test_what_a_server_that_died_in_an_adoption_left_goes_on(quick: Harness) -> None:
    api = quick.project("mine")
    sandbox_id = api.post("/v1/sandboxes", json={}).json()["id"]
    quick.peer.sandboxes[sandbox_id] |= {"quarantined_at": now(), "project_id": "pjlost", "about": {}, "spec": SPEC}
    quick.until(lambda: "quarantined_at" not in quick.peer.sandboxes[sandbox_id])
    assert quick.peer.count("sandbox.quarantine") == 0 and api.get(f"/v1/sandboxes/{sandbox_id}").status_code == 200


def test_rows_that_are_ahead_of_the_node_become_node_lost_and_do_not_vanish(quick: Harness) -> None:
    api = quick.project("mine")
    lost, told = (api.post("/v1/sandboxes", json={}).json()["id"] for _ in range(2))
    del quick.peer.sandboxes[lost]
    # Its event went to a database that was newer: only the node's list tells.
    quick.peer.sandboxes[told] |= {"state": "ended", "termination_reason": "oom", "ended_at": OLD, "disk_kept": False}
    quick.until(lambda: api.get(f"/v1/sandboxes/{lost}").json()["state"] == "ended")
    found = api.get(f"/v1/sandboxes/{lost}").json()
    assert (found["termination_reason"], found["message"]) == ("node_lost", "its node has no trace of it")
    quick.until(lambda: api.get(f"/v1/sandboxes/{told}").json()["state"] == "ended")
    found = api.get(f"/v1/sandboxes/{told}").json()
    assert (found["termination_reason"], found["ended_at"]) == ("oom", OLD)


def test_a_disk_of_one_that_was_deleted_while_the_node_was_away_goes(quick: Harness) -> None:
    api = quick.project("mine")
    sandbox_id = api.post("/v1/sandboxes", json={}).json()["id"]
    quick.end(sandbox_id, "node_lost")
    quick.peer.sandboxes[sandbox_id]["disk_kept"] = True
    quick.until(lambda: api.get(f"/v1/sandboxes/{sandbox_id}").json()["state"] == "ended")
    quick.run(quick.peer.stop())
    quick.until(lambda: quick.health()["node"] == "down")
    assert api.delete(f"/v1/sandboxes/{sandbox_id}").status_code == 204
    assert sandbox_id in quick.peer.sandboxes
    quick.run(quick.peer.start())
    quick.until(lambda: sandbox_id not in quick.peer.sandboxes)
