"""Pools on the server: who may, what is refused, what the node is told, and how a create takes a member."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from server_harness import Harness, error_of, make

from bellglass.errors import InternalError, NoCapacity
from bellglass.ids import new_sandbox_id

SMALL = {"cpus": 1, "memory": "256MiB", "disk": "1GiB", "pids": 64}


@pytest.fixture
def admin(harness: Harness) -> httpx2.Client:
    return harness.admin


def test_set_get_list_and_delete(harness: Harness, admin: httpx2.Client) -> None:
    made = admin.put("/v1/pools/base", json={"size": 2, "ceiling": 5, **SMALL})
    assert made.status_code == 200, made.text
    pool = made.json()
    assert (pool["template"], pool["size"], pool["ceiling"], pool["tier"]) == ("base", 2, 5, "container")
    assert (pool["memory_bytes"], pool["disk_bytes"], pool["inodes"]) == (256 * 2**20, 2**30, 65536)
    assert pool["status"]["hits"] == 7 and pool["status"]["misses"] == {"empty": 2}
    [told] = harness.peer.wanted_pools
    assert told["size"] == 2 and told["ceiling"] == 5 and told["pids"] == 64

    again = admin.put("/v1/pools/base", json={"size": 3}).json()
    assert (again["size"], again["ceiling"], again["cpus"], again["pids"]) == (3, None, 2.0, 512), "replaced as a whole"
    assert again["created_at"] == pool["created_at"] and again["updated_at"] > pool["updated_at"]
    assert admin.get("/v1/pools").json()["items"] == [admin.get("/v1/pools/base").json()]

    assert admin.delete("/v1/pools/base").status_code == 204
    assert harness.peer.wanted_pools == [] and admin.get("/v1/pools").json()["items"] == []
    error_of(admin.delete("/v1/pools/base"), 404, "not_found")
    error_of(admin.get("/v1/pools/base"), 404, "not_found")
    kinds = [row[0] for row in harness.database("select type from events where type like 'pool.%' order by seq")]
    assert kinds == ["pool.set", "pool.set", "pool.deleted"]


def test_pools_are_the_operators(harness: Harness, admin: httpx2.Client, api: httpx2.Client) -> None:
    for method, path in (("GET", "/v1/pools"), ("GET", "/v1/pools/base"), ("DELETE", "/v1/pools/base")):
        error_of(api.request(method, path), 403, "forbidden")
    error_of(api.put("/v1/pools/base", json={"size": 1}), 403, "forbidden")
    error_of(harness.client(None).get("/v1/pools"), 401)
    assert admin.get("/v1/pools").status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "size"),
        ({"size": -1}, "size"),
        ({"size": 1001}, "size"),
        ({"size": "2"}, "size"),
        ({"size": 2, "ceiling": 1}, "ceiling"),
        ({"size": 1, "cpus": 0.01}, "cpus"),
        ({"size": 1, "memory": "1MiB"}, "memory"),
        ({"size": 1, "disk": "1KiB"}, "disk"),
        ({"size": 1, "pids": 2}, "pids"),
        ({"size": 1, "isolation": "none"}, "isolation"),
        ({"size": 1, "lifetime": "1h"}, "lifetime"),
    ],
)
def test_wrong_values_are_refused_by_name(admin: httpx2.Client, body: dict[str, Any], field: str) -> None:
    assert admin.put("/v1/pools/base", json={"size": 1, "ceiling": 1, **SMALL}).status_code == 200
    error = error_of(admin.put("/v1/pools/base", json=body), 422)
    assert error["details"]["field"] == field, error
    assert admin.get("/v1/pools/base").json()["size"] == 1, "what was set before stays"


def test_unknown_templates_are_refused(admin: httpx2.Client) -> None:
    error = error_of(admin.put("/v1/pools/bsae", json={"size": 1}), 422)
    assert "base" in error["hint"]
    error_of(admin.put("/v1/pools/base", json={"size": 1, "count": 1}), 422)
    assert "size" in error_of(admin.put("/v1/pools/base", json={"count": 1}), 422)["hint"]


def test_a_create_takes_a_member(harness: Harness, admin: httpx2.Client, api: httpx2.Client) -> None:
    harness.peer.members = [new_sandbox_id()]
    asked = harness.peer.count("pool.take")
    admin.delete("/v1/pools/base")
    make(api)
    assert harness.peer.count("pool.take") == asked, "without a pool the node is not asked"
    admin.put("/v1/pools/base", json={"size": 1})
    [member] = harness.peer.members
    assert make(api, inputs={"a": {"text": "b"}})["id"] != member
    box = make(api, name="first", env={"A": "1"}, labels={"a": "b"}, owner="ann")
    assert box["id"] == member and box["state"] == "running" and box["labels"] == {"a": "b"}
    params = harness.peer.params("sandbox.create")
    assert params["sandbox_id"] == member and params["spec"]["env"] == {"A": "1"}
    assert make(api)["id"] != member, "beyond the pool it starts cold"
    assert harness.peer.released == []
    assert api.delete(f"/v1/sandboxes/{member}").status_code == 204


def test_a_member_that_is_not_used_is_given_back(harness: Harness, admin: httpx2.Client, api: httpx2.Client) -> None:
    admin.put("/v1/pools/base", json={"size": 1})
    harness.peer.members.clear()
    one, two, three, four = (new_sandbox_id() for _ in range(4))
    harness.peer.members, harness.peer.released = [one, two, three], []
    # All three see no sandbox of that name before one of them has made it.
    release, before = harness.hold("pool.take"), harness.peer.count("pool.take")
    with ThreadPoolExecutor(3) as pool:
        bodies = [{"name": "held"}, {"name": "held", "get_or_create": True}, {"name": "held", "get_or_create": True}]
        waiting = [pool.submit(api.post, "/v1/sandboxes", json=body) for body in bodies]
        harness.until(lambda: harness.peer.count("pool.take") == before + 3)
        release()
        answers = [done.result(10) for done in waiting]
    made = [answer.json()["id"] for answer in answers if answer.status_code == 201]
    assert len(made) == 1 and made[0] in (one, two, three)
    assert sorted(answer.status_code for answer in answers) in ([200, 200, 201], [200, 201, 409])
    given_back = sorted(harness.peer.released)
    assert given_back == sorted((member, False) for member in (one, two, three) if member not in made)
    harness.peer.members = [new_sandbox_id()]
    # The node has made nothing of it: the same id may come again.
    harness.peer.fail["sandbox.create"] = NoCapacity("full", details={"resource": "memory"})
    error_of(api.post("/v1/sandboxes", json={}), 503, "no_capacity")
    harness.peer.fail.clear()
    harness.peer.members = [four]
    assert make(api)["id"] == four


def test_no_id_is_given_to_two_sandboxes(harness: Harness, admin: httpx2.Client, api: httpx2.Client) -> None:
    """Of a create that was cut off there is a row; the node may have the member yet, and offers it again."""
    admin.put("/v1/pools/base", json={"size": 1})
    member = new_sandbox_id()
    harness.peer.members, harness.peer.released = [member, member, member], []
    assert make(api)["id"] == member
    other = make(harness.project("other"))
    assert other["id"] != member
    assert api.delete(f"/v1/sandboxes/{member}").status_code == 204
    assert make(api)["id"] != member, "an id of the past is not used again either"
    assert harness.peer.released == [(member, True), (member, True)]


def test_a_pool_that_does_not_answer_costs_no_create(
    harness: Harness, admin: httpx2.Client, api: httpx2.Client
) -> None:
    admin.put("/v1/pools/base", json={"size": 1})
    harness.peer.members = [new_sandbox_id()]
    harness.peer.fail["pool.take"] = InternalError("a fault on order")
    assert make(api)["id"] not in harness.peer.members


def test_the_node_hears_of_the_pools_when_it_connects(own_harness: Harness) -> None:
    admin = own_harness.admin
    assert admin.put("/v1/pools/base", json={"size": 2, **SMALL}).status_code == 200
    own_harness.run(own_harness.peer.stop())
    own_harness.until(lambda: own_harness.health()["node"] == "down")
    error_of(admin.put("/v1/pools/base", json={"size": 3}), 503, "node_unavailable")
    shown = admin.get("/v1/pools/base").json()
    assert shown["size"] == 2 and shown["status"] is None
    own_harness.peer.wanted_pools = []
    own_harness.run(own_harness.peer.start())
    own_harness.until(lambda: own_harness.health()["node"] == "up")
    own_harness.until(lambda: [pool["size"] for pool in own_harness.peer.wanted_pools] == [2])

    # Deleted while the node is away: it hears of that as well.
    own_harness.run(own_harness.peer.stop())
    own_harness.until(lambda: own_harness.health()["node"] == "down")
    assert admin.delete("/v1/pools/base").status_code == 204
    own_harness.run(own_harness.peer.start())
    own_harness.until(lambda: own_harness.peer.wanted_pools == [])
