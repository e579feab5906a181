"""A hundred creates at once: exactly as many sandboxes as the limit lets, one per name and key, and nothing besides."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from bellglass import AsyncSandbox, LimitExceeded, Sandbox
from bellglass.testing import kernel
from bellglass.testing.stack import Stack

TINY = {"template": "base", "cpus": 0.5, "memory": "64MiB", "disk": "64MiB", "pids": 32, "lifetime": "10m"}
_SANDBOX = re.compile(r"sb[a-z2-7]{20}")


@pytest.fixture
def project(stack: Stack, admin: httpx2.Client, no_leak: None) -> Iterator[httpx2.Client]:
    """A client of a project of its own, for a hundred requests at once; its sandboxes end with the test."""
    key = admin.post("/v1/keys", json={"project": f"crowd-{secrets.token_hex(4)}"}).json()["secret"]
    with client(stack, key) as made:
        yield made
        delete_all(made)


@pytest.fixture
def admin(stack: Stack) -> Iterator[httpx2.Client]:
    with client(stack, stack.admin_key) as made:
        yield made


def client(stack: Stack, key: str) -> httpx2.Client:
    return httpx2.Client(
        base_url=stack.api_url,
        headers={"authorization": f"Bearer {key}"},
        timeout=120,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        trust_env=False,
    )


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def listed(api: httpx2.Client) -> dict[str, str]:
    """Of all sandboxes that the project can see, also ended ones: id to state."""
    items = api.get("/v1/sandboxes", params={"state": "all", "limit": 1000}).json()["items"]
    return {item["id"]: item["state"] for item in items}


def delete_all(api: httpx2.Client) -> None:
    ids = list(listed(api))
    with ThreadPoolExecutor(10) as pool:
        assert {answer.status_code for answer in pool.map(lambda id: api.delete(f"/v1/sandboxes/{id}"), ids)} <= {204}


def machines(stack: Stack) -> set[str]:
    """The sandboxes of the installation that the kernel knows of."""
    return {found[0] for path in kernel.cgroups() if stack.scope.names(path) and (found := _SANDBOX.search(path))}


def limit(admin: httpx2.Client, project: httpx2.Client, most: int) -> None:
    project_id = project.get("/v1/me").json()["project"]["id"]
    answer = admin.put("/v1/limits", json={"project": project_id, "sandboxes": most})
    assert (answer.status_code, answer.json()["sandboxes"]["most"]) == (200, most)


def test_a_hundred_creates_against_a_limit_of_ten(stack: Stack, admin: httpx2.Client, project: httpx2.Client) -> None:
    before = machines(stack)
    limit(admin, project, 10)
    answers = at_once(100, lambda _: project.post("/v1/sandboxes", json=TINY))
    assert Counter(answer.status_code for answer in answers) == {201: 10, 429: 90}
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    for answer in answers:
        if answer.status_code == 429:
            error = answer.json()["error"]
            assert (error["code"], error["retryable"]) == ("limit_exceeded", True)
            assert error["details"] == {"limit": "sandboxes", "most": 10, "used": 10}
    assert listed(project) == dict.fromkeys(made, "running")
    assert machines(stack) - before == made
    for id in made:
        done = project.post(f"/v1/sandboxes/{id}/executions", json={"command": ["echo", id]})
        assert done.json()["stdout"] == f"{id}\n"


def test_creates_against_the_memory_of_the_node(stack: Stack, admin: httpx2.Client, project: httpx2.Client) -> None:
    fit = 5
    before = machines(stack)
    free = admin.get("/v1/node").json()["capacity"]["resources"]["memory"]["free"]
    body = {**TINY, "memory": free // fit}
    answers = at_once(30, lambda _: project.post("/v1/sandboxes", json=body))
    assert Counter(answer.status_code for answer in answers) == {201: fit, 503: 30 - fit}
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    for answer in answers:
        if answer.status_code == 503:
            error = answer.json()["error"]
            assert (error["code"], error["details"]["resource"]) == ("no_capacity", "memory")
            assert error["details"]["free"] < body["memory"]
    assert listed(project) == dict.fromkeys(made, "running"), "a refused create leaves no row"
    assert machines(stack) - before == made


def test_the_sdk_says_which_limit(stack: Stack, admin: httpx2.Client, project: httpx2.Client) -> None:
    limit(admin, project, 1)
    options: dict[str, Any] = {
        **{name: value for name, value in TINY.items() if name != "template"},
        "api_url": stack.api_url,
        "api_key": project.headers["authorization"].removeprefix("Bearer "),
    }
    with Sandbox(**options):
        with pytest.raises(LimitExceeded, match="its limit is 1") as caught:
            Sandbox(**options)
        assert caught.value.details["most"] == 1

        async def again() -> None:
            with pytest.raises(LimitExceeded):
                await AsyncSandbox(**options)

        asyncio.run(again())
    Sandbox(**options).delete()


def test_the_command_line_sets_and_shows_limits(stack: Stack, project: httpx2.Client) -> None:
    me = project.get("/v1/me").json()["project"]
    operator = {"BELLGLASS_ADMIN_KEY": stack.admin_key}
    done = stack.command("limits", "set", "--project", me["name"], "--sandboxes", "7", environment=operator)
    assert done.returncode == 0, done.stderr
    key = {"BELLGLASS_API_KEY": project.headers["authorization"].removeprefix("Bearer ")}
    shown = stack.command("limits", "show", environment=key).stdout.decode().splitlines()
    assert shown[0].split() == ["PROJECT", "LIMIT", "USED", "MOST"]
    assert shown[1].split() == [me["name"], "sandboxes", "0", "7"]
    done = stack.command("limits", "set", "--project", me["id"], "--sandboxes", "default", environment=operator)
    assert done.returncode == 0, done.stderr
    assert project.get("/v1/limits").json()["sandboxes"] == {"most": 1000, "used": 0, "own": False}
    refused = stack.command("limits", "set", "--project", me["name"], "--sandboxes", "-1", environment=operator)
    assert refused.returncode == 1 and b"--sandboxes: '-1'" in refused.stderr


def test_fifty_get_or_creates_make_one(stack: Stack, project: httpx2.Client) -> None:
    before = machines(stack)
    body = {**TINY, "name": "shared", "get_or_create": True}
    answers = at_once(50, lambda _: project.post("/v1/sandboxes", json=body))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 49}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert {answer.json()["state"] for answer in answers} == {"running"}
    assert machines(stack) - before == set(listed(project))

    async def more() -> set[str]:
        key = project.headers["authorization"].removeprefix("Bearer ")
        boxes = await asyncio.gather(
            *[
                AsyncSandbox.get_or_create(name="shared", api_url=stack.api_url, api_key=key, cpus=0.5, memory="64MiB")
                for _ in range(20)
            ]
        )
        await asyncio.gather(*[box.aclose() for box in boxes])
        return {box.id for box in boxes}

    assert asyncio.run(more()) == set(listed(project))


def test_one_key_in_flight_makes_one(stack: Stack, project: httpx2.Client) -> None:
    """Of two bodies with one key the first wins, whichever it is, and all that ask for the same get the same."""
    before = machines(stack)
    headers = {"idempotency-key": secrets.token_hex(8)}
    answers = at_once(30, lambda n: project.post("/v1/sandboxes", json={**TINY, "pids": 32 + n % 2}, headers=headers))
    won = {answer.json()["pids"] for answer in answers if answer.status_code == 201}
    assert len(won) == 1 and Counter(answer.status_code for answer in answers) == {201: 15, 409: 15}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 201}) == 1
    refused = {answer.json()["error"]["code"] for answer in answers if answer.status_code == 409}
    assert refused == {"idempotency_conflict"}
    assert machines(stack) - before == set(listed(project)) and len(listed(project)) == 1


def test_a_name_is_free_once_its_delete_is_answered(project: httpx2.Client) -> None:
    seen = set()
    for _ in range(5):
        made = project.post("/v1/sandboxes", json={**TINY, "name": "again"})
        assert made.status_code == 201, made.text
        assert project.post("/v1/sandboxes", json={**TINY, "name": "again"}).status_code == 409
        seen.add(made.json()["id"])
        assert project.delete(f"/v1/sandboxes/{made.json()['id']}").status_code == 204
    assert len(seen) == 5
