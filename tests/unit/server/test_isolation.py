"""Two projects: every route of the API with an id of the other one answers exactly as with an id that nobody has.

The routes come from the OpenAPI document, so a new one is in the matrix the day it is written.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
import websockets.exceptions
import websockets.sync.client
from server_harness import Harness, error_of, example

from bellglass.errors import RequestError
from bellglass.server.http.websockets import SocketRoute

UNKNOWN = "sb" + "7" * 20
NEED_MORE = ("file.move", "exec.output", "exec.get", "exec.stdin", "exec.signal", "exec.resize")
"""What needs more than the example, or than the stand-in of the node can do; contexts, too."""
MALFORMED = ("x", "sb", UNKNOWN.upper(), UNKNOWN + "7", UNKNOWN + "%0A", "%00", "sb%2e%2e", "a" * 5000, "é")


@pytest.fixture(scope="module")
def operations(harness: Harness) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """(method, path, request, operation) of each route with a sandbox's id that asks for a key."""
    return [each for each in of_sandboxes(harness) if "security" in each[3]]


def of_sandboxes(harness: Harness) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    document = harness.client(None).get("/v1/openapi.json").json()
    return [
        (method.upper(), path, example(document, operation), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "{sandbox_id}" in path
    ]


def ask(client: httpx2.Client, method: str, path: str, sandbox_id: str, request: dict[str, Any]) -> httpx2.Response:
    filled = path.format(sandbox_id=sandbox_id, execution_id="0" * 26, context_id="0" * 26, port=8000)
    return client.request(method, filled, **request)


def shape(answer: httpx2.Response) -> str:
    if answer.request.method == "HEAD":
        headers = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
        return f"{answer.status_code} {headers}"
    error = error_of(answer, 404, "not_found")
    headers = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "content-length")}
    return json.dumps([error | {"request_id": ""}, headers])


def test_the_matrix(harness: Harness, operations: Any) -> None:
    ours, theirs = harness.project("ours"), harness.project("theirs")
    box = ours.post("/v1/sandboxes", json={"name": "secret"}).json()["id"]
    ours.post(f"/v1/sandboxes/{box}/executions", json={"command": ["true"], "id": "0" * 26})
    ours.put(f"/v1/sandboxes/{box}/files", params={"path": "x"}, content=b"x")
    assert len(operations) >= 18
    for method, path, request, operation in operations:
        before = len(harness.peer.calls)
        foreign = shape(ask(theirs, method, path, box, request))
        assert len(harness.peer.calls) == before, "nothing reaches the node"
        assert foreign == shape(ask(theirs, method, path, UNKNOWN, request)), operation["operationId"]
        for malformed in MALFORMED:
            assert foreign == shape(ask(theirs, method, path, malformed, request)), (
                operation["operationId"],
                malformed,
            )
    order = {"file.remove": 1, "port.unpublish": 1, "sandbox.delete": 2}
    for method, path, request, operation in sorted(operations, key=lambda each: order.get(each[3]["operationId"], 0)):
        if operation["operationId"] in NEED_MORE or operation["operationId"].startswith("context."):
            continue
        answer = ask(ours, method, path, box, request)
        assert answer.status_code < 300, (operation["operationId"], answer.text)


def test_signed_urls_say_nothing_of_what_is_there(harness: Harness) -> None:
    """Without a key all answer alike: the signature is wrong."""
    box = harness.project("ours").post("/v1/sandboxes", json={}).json()["id"]
    public = [each for each in of_sandboxes(harness) if "security" not in each[3]]
    assert {operation["operationId"] for *_, operation in public} == {
        "file.read_signed", "file.head_signed", "file.write_signed"
    }  # fmt: skip
    for method, path, _, operation in public:
        request = {"params": {"path": "x", "expires": 2**40, "key": "ky", "signature": "s"}}
        answers = [ask(harness.client(None), method, path, other, request) for other in (box, UNKNOWN, *MALFORMED)]
        assert {answer.status_code for answer in answers} == {403}, operation["operationId"]
        assert len({len(answer.content) for answer in answers}) == 1


def handshake(harness: Harness, client: httpx2.Client, path: str) -> tuple[int, str]:
    """The status of a WebSocket's handshake, and what a refusal says."""
    headers = {"authorization": client.headers["authorization"]}
    try:
        with websockets.sync.client.connect(
            harness.url.replace("http", "ws") + path, additional_headers=headers, proxy=None
        ):
            return 101, ""
    except websockets.exceptions.InvalidStatus as refused:
        error = json.loads(refused.response.body)["error"]
        return refused.response.status_code, json.dumps(error | {"request_id": ""})


def test_websockets_too(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = harness.project("ours"), harness.project("theirs")
    box = ours.post("/v1/sandboxes", json={}).json()["id"]
    operations = {"exec.attach": "execution.attach", "file.watch": "file.watch"}
    routes = [route for route in harness.application.fastapi.router.routes if isinstance(route, SocketRoute)]
    paths = {route.action: route.path for route in routes if "{sandbox_id}" in route.path}
    assert set(paths) == set(operations)
    for action, path in paths.items():

        def at(sandbox_id: str, path: str = path, query: str = "?path=%2F" if action == "file.watch" else "") -> str:
            return path.format(sandbox_id=sandbox_id, execution_id="0" * 26) + query

        monkeypatch.setitem(harness.peer.fail, operations[action], RequestError("as far as the node"))
        status, said = handshake(harness, ours, at(box))
        assert status == 400 and "as far as the node" in said, action
        before = len(harness.peer.calls)
        foreign = handshake(harness, theirs, at(box))
        for unknown in (UNKNOWN, "x", UNKNOWN.upper(), UNKNOWN + "7"):
            assert handshake(harness, theirs, at(unknown)) == foreign, (action, unknown)
        assert foreign[0] == 404 and len(harness.peer.calls) == before, "nothing reaches the node"


def test_ids_in_other_places(harness: Harness) -> None:
    ours, theirs = harness.project("ours"), harness.project("theirs")
    box = ours.post("/v1/sandboxes", json={"name": "mine", "labels": {"a": "b"}, "owner": "me"}).json()["id"]
    mine = ours.post(f"/v1/sandboxes/{box}/executions", json={"command": ["true"]}).json()["execution"]["id"]
    other = theirs.post("/v1/sandboxes", json={}).json()["id"]
    error_of(theirs.get(f"/v1/sandboxes/{other}/executions/{mine}"), 404, "not_found")
    for query in ("name=mine", "label=a=b", "owner=me", "state=all"):
        found = [item["id"] for item in theirs.get(f"/v1/sandboxes?{query}").json()["items"]]
        assert box not in found
    made = theirs.post("/v1/sandboxes", json={"name": "mine", "get_or_create": True})
    assert made.status_code == 201
    page = ours.get("/v1/sandboxes", params={"limit": 1, "state": "all"}).json()
    if page["cursor"]:
        found = theirs.get("/v1/sandboxes", params={"cursor": page["cursor"], "state": "all"}).json()["items"]
        assert box not in [item["id"] for item in found]


def test_refusals_are_audited(harness: Harness) -> None:
    theirs = harness.project("auditor")
    error_of(theirs.get(f"/v1/sandboxes/{UNKNOWN}"), 404)
    query = f"select count(*) from audit where action = 'sandbox.get' and objects like '%{UNKNOWN}%'"
    harness.until(lambda: harness.database(query)[0][0] >= 1)
