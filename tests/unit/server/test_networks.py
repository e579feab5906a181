"""The network of a sandbox through the API: read, replaced, and settled with the node behind a crash."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from server_harness import Harness, error_of, make

from bellglass.errors import InternalError, NodeUnavailable
from bellglass.model import NetworkPolicy, read_network

POLICY = {"presets": ["pip"], "allow": ["API.example.com:443", {"cidr": "203.0.114.0/24", "ports": [5432, 22]}]}
ALL_BUT = {"mode": "open", "deny": ["203.0.114.7/32", "2a00::/32"]}
STORED = {
    "presets": ["pip"],
    "allow": [
        {"host": "api.example.com", "cidr": None, "ports": [443], "protocol": "tcp"},
        {"host": None, "cidr": "203.0.114.0/24", "ports": [22, 5432], "protocol": "tcp"},
    ],
}


def put(api: httpx2.Client, sandbox_id: str, network: Any) -> httpx2.Response:
    return api.put(f"/v1/sandboxes/{sandbox_id}/network", json={"network": network})


def told(harness: Harness, sandbox_id: str) -> list[dict[str, Any]]:
    """What the node was asked to change of it."""
    asked = [params for op, params in harness.peer.calls if op == "sandbox.set_network"]
    return [params for params in asked if params["sandbox_id"] == sandbox_id]


def test_at_create(harness: Harness, api: httpx2.Client) -> None:
    plain = make(api)
    assert (plain["network"], plain["network_generation"]) == ("deny", 1)
    box = make(api, network=POLICY)
    assert box["network"] == STORED, "in one form"
    spec = harness.peer.params("sandbox.create")["spec"]
    assert (spec["network"], spec["network_generation"]) == (STORED, 1)
    assert api.get(f"/v1/sandboxes/{box['id']}").json()["network"] == STORED
    found = api.get(f"/v1/sandboxes/{box['id']}/network").json()
    assert found["network"] == STORED and found["generation"] == 1
    [rule] = found["resolved"]
    assert (rule["host"], rule["origin"]) == ("pip.example", "preset:pip")
    assert make(api, network="open")["network"] == "open"


def test_a_change_is_stored_before_it_is_answered(harness: Harness, api: httpx2.Client) -> None:
    box = make(api, network="open")
    answer = put(api, box["id"], POLICY)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["network"], answer.json()["generation"]) == (STORED, 2)
    [asked] = told(harness, box["id"])
    assert (asked["network"], asked["network_generation"]) == (STORED, 2)
    assert put(api, box["id"], "deny").json()["generation"] == 3
    assert api.get(f"/v1/sandboxes/{box['id']}").json()["network"] == "deny"
    rows = harness.database("select data from events where type = 'network.changed' order by seq")
    assert [json.loads(row[0]) for row in rows] == [
        {"network": STORED, "generation": 2}, {"network": "deny", "generation": 3}
    ]  # fmt: skip
    harness.until(lambda: len(harness.database("select seq from audit where action = 'network.set'")) == 2)


@pytest.mark.parametrize("network", ["deny", "open", STORED, ALL_BUT], ids=str)
def test_what_is_shown_can_be_set_again_as_it_is(harness: Harness, api: httpx2.Client, network: Any) -> None:
    """With all that it says, at each place where it is shown."""
    created, changed = make(api, network=network), make(api, network="open" if network == "deny" else "deny")
    assert created["network"] == network and put(api, changed["id"], network).json()["network"] == network
    for box in (created, changed):
        [listed] = [
            one for one in api.get("/v1/sandboxes", params={"limit": 200}).json()["items"] if one["id"] == box["id"]
        ]
        for shown in (
            listed,
            api.get(f"/v1/sandboxes/{box['id']}").json(),
            api.get(f"/v1/sandboxes/{box['id']}/network").json(),
        ):
            assert shown["network"] == network
            assert read_network(shown["network"]) == read_network(network)
            assert put(api, box["id"], shown["network"]).json()["network"] == network
        assert all(asked["network"] == network for asked in told(harness, box["id"]))
        assert put(api, box["id"], "deny").json()["network"] == "deny"


@pytest.mark.parametrize(
    ("network", "field"),
    [
        (NetworkPolicy(mode="open", deny=["203.0.114.7"], allow=["a.example"]), "network.allow"),
        (NetworkPolicy(mode="open", deny=["203.0.114.7"], presets=["pip"]), "network.presets"),
        (NetworkPolicy(allow=["a.example"], deny=["203.0.114.7"]), "network.deny"),
    ],
    ids=["allow", "presets", "deny"],
)
def test_what_a_mode_has_no_use_for_is_sent_and_refused(api: httpx2.Client, network: NetworkPolicy, field: str) -> None:
    """A client that left it out would be given another network than it asked for."""
    box = make(api)
    assert error_of(put(api, box["id"], network.to_json()), 422)["details"]["field"] == field
    assert NetworkPolicy.from_json(network.to_json()) == network
    assert put(api, box["id"], replace(network, **{field.rpartition(".")[2]: []}).to_json()).status_code == 200


def test_whose_it_is(harness: Harness, api: httpx2.Client) -> None:
    box = make(api)
    other = harness.project("other")
    unknown = error_of(put(api, "sb" + "z" * 20, "deny"), 404, "not_found")
    foreign = error_of(put(other, box["id"], "open"), 404, "not_found")
    assert {**foreign, "request_id": 0} == {**unknown, "request_id": 0}
    error_of(other.get(f"/v1/sandboxes/{box['id']}/network"), 404, "not_found")
    error_of(harness.client(None).get(f"/v1/sandboxes/{box['id']}/network"), 401)
    assert told(harness, box["id"]) == []
    assert put(api, box["id"], "open").status_code == 200


def test_one_that_ended(harness: Harness, api: httpx2.Client) -> None:
    box = make(api, network=POLICY)
    assert put(api, box["id"], POLICY).status_code == 200
    harness.end(box["id"], "lifetime")
    harness.until(lambda: api.get(f"/v1/sandboxes/{box['id']}").json()["state"] == "ended")
    error_of(put(api, box["id"], "open"), 410, "sandbox_gone")
    found = api.get(f"/v1/sandboxes/{box['id']}/network").json()
    assert found == {"network": STORED, "generation": 2, "resolved": None, "traffic": None}
    api.delete(f"/v1/sandboxes/{box['id']}")
    error_of(put(api, box["id"], "open"), 404, "not_found")
    error_of(api.get(f"/v1/sandboxes/{box['id']}/network"), 404, "not_found")


def test_one_that_is_not_started_yet(harness: Harness, api: httpx2.Client) -> None:
    go_on = harness.hold("sandbox.create")
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make, api, name="slow")
        harness.until(lambda: api.get("/v1/sandboxes", params={"name": "slow"}).json()["items"])
        [box] = api.get("/v1/sandboxes", params={"name": "slow"}).json()["items"]
        error_of(put(api, box["id"], "open"), 409, "conflict")
        assert api.get(f"/v1/sandboxes/{box['id']}/network").json()["resolved"] is None
        go_on()
        assert put(api, making.result()["id"], "open").json()["generation"] == 2


@pytest.mark.parametrize("failure", [NodeUnavailable("proxy is away"), InternalError("no")], ids=["503", "500"])
def test_a_node_that_does_not_take_it_gets_it_later(own_harness: Harness, failure: Any) -> None:
    harness, secret = own_harness, own_harness.key()["secret"]
    api = harness.client(secret)
    box = make(api, network="open")
    harness.peer.fail["sandbox.set_network"] = failure
    error = error_of(put(api, box["id"], "deny"), failure.status)
    if failure.status == 503:
        assert "stored" in error["hint"] and error["retryable"]
    assert api.get(f"/v1/sandboxes/{box['id']}").json()["network"] == "deny", "what should be"
    assert harness.peer.sandboxes[box["id"]]["network"] == "open"
    del harness.peer.fail["sandbox.set_network"]
    harness.stop()
    harness.start()
    harness.until(lambda: harness.peer.sandboxes[box["id"]]["network"] == "deny")
    assert harness.peer.sandboxes[box["id"]]["network_generation"] == 2


def test_a_late_change_does_not_undo_a_later_one(harness: Harness, api: httpx2.Client) -> None:
    """The two reach the node the other way round."""
    box = make(api)
    go_on = harness.hold("sandbox.set_network")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(put, api, box["id"], "open")
        harness.until(lambda: api.get(f"/v1/sandboxes/{box['id']}").json()["network"] == "open")
        second = pool.submit(put, api, box["id"], "deny")
        harness.until(lambda: api.get(f"/v1/sandboxes/{box['id']}").json()["network"] == "deny")
        harness.until(lambda: len(told(harness, box["id"])) == 2)
        harness.peer.sandboxes[box["id"]] |= {"network": "deny", "network_generation": 3}
        go_on()
        assert first.result().json()["generation"] == second.result().json()["generation"] == 3
        assert first.result().json()["network"] == "deny", "what is in force"
    assert [params["network_generation"] for params in told(harness, box["id"])] == [2, 3]


def test_an_older_database_takes_the_newer_network_of_the_node(own_harness: Harness) -> None:
    harness, secret = own_harness, own_harness.key()["secret"]
    box = make(harness.client(secret), network="open")
    harness.peer.sandboxes[box["id"]] |= {"network": "deny", "network_generation": 7}
    harness.stop()
    api = harness.start().client(secret)
    harness.until(lambda: api.get(f"/v1/sandboxes/{box['id']}").json()["network"] == "deny")
    assert put(api, box["id"], "open").json()["generation"] == 8


@pytest.mark.parametrize("held", [2, 7], ids=["as many changes", "more"])
def test_a_change_stays_whatever_the_node_had_before_the_database_was_restored(
    harness: Harness, api: httpx2.Client, held: int
) -> None:
    """Before the two were compared, and while the node was away."""
    box = make(api)
    there = harness.peer.sandboxes[box["id"]]
    there |= {"network": "open", "network_generation": held}
    answer = put(api, box["id"], "deny").json()
    assert (answer["network"], there["network"]) == ("deny", "deny")
    assert answer["generation"] == there["network_generation"] == held + 1
    shown = api.get(f"/v1/sandboxes/{box['id']}").json()
    assert shown["network"] == "deny"


@pytest.mark.parametrize("held", [2, 7], ids=["as many changes", "more"])
def test_so_does_one_that_the_node_could_not_be_told(own_harness: Harness, held: int) -> None:
    harness = own_harness
    api = harness.project()
    box, other = make(api), make(api)
    there, there_too = (harness.peer.sandboxes[each["id"]] for each in (box, other))
    there |= {"network": "open", "network_generation": held}
    harness.peer.fail["sandbox.set_network"] = NodeUnavailable("proxy is away")
    error_of(put(api, box["id"], {"allow": ["api.example.com"]}), 503)
    del harness.peer.fail["sandbox.set_network"]
    harness.run(harness.peer.stop())
    there_too |= {"network": "open", "network_generation": 7}
    harness.run(harness.peer.start())
    harness.until(lambda: there["network"] != "open", 20)
    assert (there["network"]["allow"], there["network_generation"]) == ([STORED["allow"][0]], held + 1)
    shown = lambda one: api.get(f"/v1/sandboxes/{one['id']}").json()["network"]  # noqa: E731
    harness.until(lambda: shown(other) == "open")  # of which nobody said anything since
    assert shown(box) == there["network"]


def test_a_node_without_networks(own_harness: Harness) -> None:
    secret = own_harness.key()["secret"]
    own_harness.stop()
    own_harness.peer.has_network = False
    api = own_harness.start().client(secret)
    box = make(api)
    error_of(put(api, box["id"], "open"), 501, "not_supported")
    assert put(api, box["id"], "deny").status_code == 200


def test_what_is_put_by_mistake(api: httpx2.Client) -> None:
    box = make(api)
    path = f"/v1/sandboxes/{box['id']}/network"
    error = error_of(api.put(path, json=POLICY), 422)
    assert "network" in error["hint"]
    error_of(api.put(path, json="deny"), 422)
    error_of(api.put(path, json={}), 422)
    error = error_of(put(api, box["id"], {"allow": ["*.com"]}), 422)
    assert error["details"]["field"] == "network.allow.0.host"
    assert api.get(path).json()["generation"] == 1
