"""How many sandboxes a project may have at once: counted exactly under a crowd, set by the operator alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_harness import Harness, error_of

from bellglass.errors import NoCapacity
from bellglass.server.db import migrate
from bellglass.server.db.engine import open_engine
from bellglass.server.limits import store
from bellglass.server.sandboxes import store as sandboxes

DEFAULT = 3


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A server whose projects may have three sandboxes."""
    harness = Harness(tmp_path_factory.mktemp("limits"), {"server.max_sandboxes": DEFAULT}).start()
    yield harness
    harness.stop()


def create(api: httpx2.Client, **body: Any) -> httpx2.Response:
    return api.post("/v1/sandboxes", json=body)


def limits(api: httpx2.Client) -> dict[str, Any]:
    answer = api.get("/v1/limits")
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["sandboxes"])


def test_one_more_than_the_limit_is_refused(small: Harness) -> None:
    api, other = small.project("one-more"), small.project("one-more-other")
    assert limits(api) == {"most": DEFAULT, "used": 0, "own": False}
    made = [create(api) for _ in range(DEFAULT)]
    assert [answer.status_code for answer in made] == [201] * DEFAULT
    refused = create(api)
    error = error_of(refused, 429, "limit_exceeded")
    assert error["details"] == {"limit": "sandboxes", "most": DEFAULT, "used": DEFAULT}
    assert error["retryable"] and error["hint"] and refused.headers["retry-after"]
    assert create(other).status_code == 201, "another project has a count of its own"
    assert limits(api) == {"most": DEFAULT, "used": DEFAULT, "own": False}
    listed = api.get("/v1/sandboxes", params={"state": "all"}).json()["items"]
    assert len(listed) == DEFAULT, "a refused create leaves no row"
    assert api.delete(f"/v1/sandboxes/{made[0].json()['id']}").status_code == 204
    assert create(api).status_code == 201, "a deleted one makes room at once"


def test_a_crowd_gets_exactly_the_limit(small: Harness) -> None:
    api = small.project("crowd")
    before = small.peer.count("sandbox.create")
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: create(api), range(40)))
    assert sorted(answer.status_code for answer in answers) == [201] * DEFAULT + [429] * (40 - DEFAULT)
    assert small.peer.count("sandbox.create") == before + DEFAULT, "the node hears of no refused one"


def test_what_ended_or_never_started_does_not_count(small: Harness) -> None:
    api = small.project("ended")
    made = [create(api).json()["id"] for _ in range(DEFAULT)]
    small.end(made[0], "lifetime")
    small.until(lambda: api.get(f"/v1/sandboxes/{made[0]}").json()["state"] == "ended")
    assert create(api).status_code == 201
    api.delete(f"/v1/sandboxes/{made[1]}")
    small.peer.fail["sandbox.create"] = NoCapacity("memory", details={"resource": "memory"})
    error_of(create(api), 503, "no_capacity")
    small.peer.fail.clear()
    assert create(api).status_code == 201, "one that the node refused has made room again"


def test_what_is_under_way_counts(small: Harness) -> None:
    """A create that has not ended, and a delete that has not."""
    api = small.project("under-way")
    release = small.hold("sandbox.create")
    with ThreadPoolExecutor(DEFAULT) as pool:
        waiting = [pool.submit(create, api) for _ in range(DEFAULT)]
        small.until(lambda: limits(api)["used"] == DEFAULT)
        error_of(create(api), 429)
        release()
        made = [done.result(10).json()["id"] for done in waiting]
    release = small.hold("sandbox.delete")
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(api.delete, f"/v1/sandboxes/{made[0]}")
        small.until(lambda: api.get(f"/v1/sandboxes/{made[0]}").json()["state"] == "stopping")
        error_of(create(api), 429)
        release()
        assert leaving.result(10).status_code == 204
    assert create(api).status_code == 201


def test_what_is_there_is_found_at_the_limit(small: Harness) -> None:
    """Neither get-or-create nor a repeated key needs room for what it does not make."""
    api = small.project("found")
    headers = {"idempotency-key": "k-1"}
    first = api.post("/v1/sandboxes", json={"name": "here"}, headers=headers)
    assert first.status_code == 201
    for _ in range(DEFAULT - 1):
        assert create(api).status_code == 201
    found = create(api, name="here", get_or_create=True)
    assert (found.status_code, found.json()["id"]) == (200, first.json()["id"])
    again = api.post("/v1/sandboxes", json={"name": "here"}, headers=headers)
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    error_of(create(api, name="new", get_or_create=True), 429)
    refused = {"idempotency-key": "k-2"}
    error_of(api.post("/v1/sandboxes", json={"name": "new"}, headers=refused), 429)
    api.delete(f"/v1/sandboxes/{first.json()['id']}")
    answer = api.post("/v1/sandboxes", json={"name": "new"}, headers=refused)
    assert answer.status_code == 201, "a refusal for lack of room is no answer to keep"


def test_the_operator_sets_a_projects_limit(small: Harness) -> None:
    api, admin = small.project("own"), small.admin
    for _ in range(DEFAULT):
        assert create(api).status_code == 201
    error_of(create(api), 429)
    answer = admin.put("/v1/limits", json={"project": "own", "sandboxes": DEFAULT + 1})
    assert (answer.status_code, answer.json()["sandboxes"]) == (200, {"most": 4, "used": 3, "own": True})
    assert answer.json()["project_name"] == "own"
    assert create(api).status_code == 201
    error_of(create(api), 429)
    by_id = admin.put("/v1/limits", json={"project": answer.json()["project_id"], "sandboxes": 1}).json()
    assert by_id["sandboxes"] == {"most": 1, "used": 4, "own": True}
    listed = api.get("/v1/sandboxes").json()["items"]
    assert [box["state"] for box in listed] == ["running"] * 4, "a lower limit ends nothing"
    api.delete(f"/v1/sandboxes/{listed[0]['id']}")
    error_of(create(api), 429)
    assert admin.put("/v1/limits", json={"project": "own", "sandboxes": None}).status_code == 200
    assert limits(api) == {"most": DEFAULT, "used": 3, "own": False}
    assert admin.get("/v1/limits", params={"project": "own"}).json()["sandboxes"]["used"] == 3


def test_who_may_ask_and_set(small: Harness) -> None:
    api, admin = small.project("asks"), small.admin
    assert admin.put("/v1/limits", json={"project": "asks", "sandboxes": 0}).status_code == 200
    error_of(create(api), 429)
    error_of(api.put("/v1/limits", json={"project": "asks", "sandboxes": 100}), 403, "forbidden")
    assert limits(api)["most"] == 0
    error_of(api.get("/v1/limits", params={"project": "asks"}), 403, "forbidden")
    error_of(small.client(None).get("/v1/limits"), 401)
    assert error_of(admin.get("/v1/limits"), 422)["details"]["field"] == "project"
    error_of(admin.get("/v1/limits", params={"project": "nobody"}), 404)
    error_of(admin.put("/v1/limits", json={"project": "nobody", "sandboxes": 1}), 404)
    for wrong in (-1, 10**7, 1.5, "3", True):
        error_of(admin.put("/v1/limits", json={"project": "asks", "sandboxes": wrong}), 422)
    error_of(admin.put("/v1/limits", json={"project": "asks"}), 422)


def test_a_change_is_an_event(small: Harness) -> None:
    project = small.key("told")["project_id"]
    assert small.admin.put("/v1/limits", json={"project": "told", "sandboxes": 7}).status_code == 200
    rows = small.database(f"select data from events where type = 'project.limits' and project_id = '{project}'")
    assert rows == [('{"sandboxes": 7}',)]


def test_refused_creates_leave_the_pool_to_others(small: Harness) -> None:
    api, other = small.project("greedy"), small.project("modest")
    assert small.admin.put("/v1/pools/base", json={"size": 1}).status_code == 200
    try:
        before = small.peer.count("pool.take")
        made = [create(api, name=f"n{number}") for number in range(DEFAULT)]
        assert [answer.status_code for answer in made] == [201] * DEFAULT
        assert small.peer.count("pool.take") == before + DEFAULT
        for _ in range(5):
            error_of(create(api), 429)
            error_of(create(api, name="n0"), 409)
            assert create(api, name="n0", get_or_create=True).status_code == 200
        assert small.peer.count("pool.take") == before + DEFAULT, "none was taken for what is not made"
        assert create(other).status_code == 201
        assert small.peer.count("pool.take") == before + DEFAULT + 1
    finally:
        small.admin.delete("/v1/pools/base")


@pytest.mark.parametrize(
    ("query", "parameters", "index"),
    [
        (store.USED, ("p",), "ix_sandboxes_live (project_id=?)"),
        (sandboxes.FIND_LIVE_NAME, ("p", "n"), "uq_sandboxes_live_name (project_id=? AND name=?)"),
    ],
)
def test_a_create_reads_live_rows_only(tmp_path: Path, query: Any, parameters: tuple[str, ...], index: str) -> None:
    """A project's ended sandboxes stay for days, and every create counts and looks for its name."""
    path = tmp_path / "plan.db"
    migrate.upgrade(path)
    engine = open_engine(path)
    with engine.connect() as connection:
        explain = "explain query plan " + str(query.compile(engine))
        plan = [str(row[3]) for row in connection.exec_driver_sql(explain, parameters)]
    engine.dispose()
    assert len(plan) == 1 and f"INDEX {index}" in plan[0], plan
