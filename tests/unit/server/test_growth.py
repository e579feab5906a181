"""Nothing that the server keeps in memory grows with what it has done: locks, tasks, streams, caches, what waits."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Set
from types import CellType, FunctionType, MethodType
from typing import Any

import httpx2
from pydantic import TypeAdapter
from server_harness import Harness, make

from bellglass.model import CreateExecution, now
from bellglass.server.http.bodies import validator

ROUNDS = 20
BODIES = 500
OURS = ("bellglass.server", "bellglass.link", "uvicorn")


def one_round(harness: Harness, api: httpx2.Client, number: int) -> None:
    """Two sandboxes' lives, with what callers and node say in them; one create is cut off, one refused."""
    headers = {"idempotency-key": f"k-{time.monotonic_ns()}"}
    answer = api.post("/v1/sandboxes", json={"name": f"n{number}"}, headers=headers)
    assert answer.status_code == 201
    box = answer.json()
    at = f"/v1/sandboxes/{box['id']}"
    assert api.post("/v1/sandboxes", json={"name": f"n{number}"}).status_code == 409
    assert api.patch(at, json={"lifetime": "20m"}).status_code == 200
    for detach in (False, True):
        body = {"command": ["true"], "detach": detach}
        assert api.post(f"{at}/executions", json=body).status_code == (201 if detach else 200)
    with api.stream("POST", f"{at}/executions", json={"command": ["stream"]}) as cut:
        assert cut.status_code == 200
    assert api.put(f"{at}/files", params={"path": "/a"}, content=b"b").status_code in (200, 201)
    assert api.get(f"{at}/files", params={"path": "/a"}).status_code == 200
    assert api.delete(at).status_code == 204
    assert api.get(at).status_code == 404
    harness.end(make(api)["id"], "lifetime")

    async def tell() -> None:
        harness.peer.event("sandbox.ended", box["id"], reason="user", ended_at=now())
        harness.peer.event("sandbox.reclaimed", box["id"])

    harness.run(tell())


def entries(*roots: Any) -> Counter[str]:
    """How many entries the containers have that can be reached from `roots`, by the way to them."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting = deque((root, type(root).__name__) for root in roots)
    while waiting:
        value, way = waiting.popleft()
        if id(value) in seen or isinstance(value, (str, bytes, type)):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            found[way] += len(value)
            waiting.extend((inner, f"{way}[]") for inner in list(value.values()))
        elif isinstance(value, (list, tuple, deque, Set)):
            found[way] += len(value)
            waiting.extend((inner, f"{way}[]") for inner in list(value))
        elif isinstance(value, MethodType):
            waiting.append((value.__self__, way))
        elif isinstance(value, FunctionType):
            waiting.extend((cell.cell_contents, f"{way}()") for cell in value.__closure__ or () if cell != CellType())
        elif type(value).__module__.startswith(OURS):
            names = set(vars(value)) if hasattr(value, "__dict__") else set()
            names |= {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
            waiting.extend((getattr(value, name, None), f"{way}.{name}") for name in names)
    return found


def kept(harness: Harness) -> Counter[str]:
    """Once what is under way has settled."""

    async def look() -> Counter[str]:
        gc.collect()
        tasks = Counter({f"task {task.get_coro().__qualname__}": 1 for task in asyncio.all_tasks()})  # type: ignore[union-attr]
        return entries(harness.application, harness.server) + tasks

    harness.until(lambda: harness.peer.acknowledged == len(harness.peer.journal))
    harness.until(lambda: not harness.application.services.audit._waiting)
    return harness.run(look())


def test_strings_of_bodies_are_not_kept() -> None:
    def grown(parse: Callable[..., Any]) -> int:
        gc.collect()
        before = sys.getallocatedblocks()
        for number in range(BODIES):
            env = {f"name-{number}-{time.monotonic_ns()}": f"secret-{number}-{time.monotonic_ns()}"}
            parse(json.dumps({"command": ["true"], "env": env}).encode(), strict=True)
        gc.collect()
        return sys.getallocatedblocks() - before

    assert grown(TypeAdapter(CreateExecution).validate_json) > BODIES, "as it comes, pydantic keeps them"
    assert grown(validator(CreateExecution).validate_json) < BODIES // 10


def test_what_is_done_leaves_nothing_in_memory(own_harness: Harness) -> None:
    api = own_harness.project("p1")
    for number in range(3):
        one_round(own_harness, api, number)
    before = kept(own_harness)
    assert len(before) > 20, "the server is looked at"
    for number in range(ROUNDS):
        one_round(own_harness, api, number)
    after = kept(own_harness)
    grown = {way: (before[way], count) for way, count in after.items() if count >= before[way] + ROUNDS // 2}
    assert not grown, "entries before and after, by the way to them"
