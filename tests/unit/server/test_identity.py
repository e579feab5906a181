"""What a sandbox may do with its own identity, route by route, and what counts as its identity."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from server_harness import INSTALLATION, SECRET, Harness, error_of, example, make

from bellglass.errors import RequestError
from bellglass.link import credential
from bellglass.link.credential import MAX_LIFETIME_S, Caller
from bellglass.server.identity.access import ACTIONS

UNKNOWN = "sb" + "7" * 20


def word(sandbox_id: str, *, secret: str = SECRET, installation: str = INSTALLATION, generation: int = 1) -> str:
    return credential.make(secret, installation, Caller(sandbox_id, generation), time.time())


@pytest.fixture(scope="module")
def inside(harness: Harness) -> Iterator[httpx2.Client]:
    """The socket that the node alone reaches: here node and server have one uid."""
    transport = httpx2.HTTPTransport(uds=str(harness.data.identity_socket))
    with httpx2.Client(base_url="http://bellglass", transport=transport, timeout=20) as client:
        yield client


def ask(inside: httpx2.Client, text: str, path: str = "/v1/me", method: str = "GET", **more: Any) -> httpx2.Response:
    return inside.request(method, path, headers={"authorization": f"Bearer {text}"}, **more)


def test_every_route(harness: Harness, api: httpx2.Client, inside: httpx2.Client) -> None:
    box, other = make(api)["id"], make(api)["id"]
    document = api.get("/v1/openapi.json").json()
    passed, refused = set(), set()
    routes = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    order = {"port.publish": -1, "port.unpublish": 1}
    for method, path, operation in sorted(routes, key=lambda each: order.get(each[2]["operationId"], 0)):
        action = operation["operationId"]
        request = example(document, operation)
        if action == "port.publish":
            request["json"] = {}

        def target(sandbox_id: str, path: str = path) -> str:
            named = path.replace("{sandbox_id}", sandbox_id).replace("{port}", "8000")
            return re.sub(r"\{[a-z_]+\}", "x", named)

        before = harness.peer.count(action)
        answer = ask(inside, word(box), target(box), method, **request)
        if action in ACTIONS:
            assert answer.status_code < 300, (action, answer.text)
            passed.add(action)
        else:
            if method != "HEAD":
                error = error_of(answer, 403, "forbidden")
                assert error["details"] == {"action": action} and repr(action) in error["message"]
            assert answer.status_code == 403
            refused.add(action)
        assert harness.peer.count(action) == before, "nothing of it reaches the node"
        if "{sandbox_id}" in path:
            foreign, unknown, mistaken = (
                ask(inside, word(box), target(where), method, **request) for where in (other, UNKNOWN, "x")
            )
            assert foreign.status_code == 404, (action, foreign.text)
            shapes = [
                (each.status_code, each.text.replace(each.headers["x-request-id"], "")) for each in (foreign, unknown)
            ]
            assert shapes[0] == shapes[1] and mistaken.status_code == 404
    assert passed == set(ACTIONS) and len(refused) >= 25
    assert api.get(f"/v1/sandboxes/{other}").json()["state"] == "running"


def test_own_ports_are_published_as_private(api: httpx2.Client, inside: httpx2.Client) -> None:
    box = make(api)["id"]
    path = f"/v1/sandboxes/{box}/ports/8000"
    published = ask(inside, word(box), path, "PUT", json={"host_header": "localhost:8000"})
    assert published.status_code == 200 and published.json()["visibility"] == "private"
    assert api.get(path).json() == published.json()
    for body in ({"visibility": "public"}, {"own_address": True}):
        assert api.put(path, json=body).status_code == 200, "a key of the project can"
        assert api.put(path, json={}).status_code == 200
        refused = error_of(ask(inside, word(box), path, "PUT", json=body), 403, "forbidden")
        assert refused["details"] == {"action": "port.publish"}
        assert api.get(path).json()["visibility"] == "private"
    assert ask(inside, word(box), path + "/tokens", "POST", json={}).status_code == 403
    assert ask(inside, word(box), path, "DELETE").status_code == 204
    assert api.get(path).status_code == 404


def test_events_are_read_and_not_followed(api: httpx2.Client, inside: httpx2.Client) -> None:
    box = make(api)["id"]
    path = f"/v1/sandboxes/{box}/events"
    assert ask(inside, word(box), path).json() == api.get(path).json()
    with api.stream("GET", path, params={"follow": True}) as following:
        assert following.status_code == 200
    refused = error_of(ask(inside, word(box), path, params={"follow": True}), 403, "forbidden")
    assert refused["details"] == {"action": "event.list"}


def test_own_record_and_nothing_of_the_project(api: httpx2.Client, inside: httpx2.Client) -> None:
    box = make(api, labels={"team": "red"})
    assert ask(inside, word(box["id"]), f"/v1/sandboxes/{box['id']}").json() == box
    assert ask(inside, word(box["id"])).json() == {"project": None, "key": None, "sandbox": {"id": box["id"]}}
    assert set(api.get("/v1/me").json()) == {"project", "key"}


def test_what_is_no_identity(harness: Harness, api: httpx2.Client, inside: httpx2.Client) -> None:
    box = make(api)["id"]
    assert ask(inside, word(box)).status_code == 200
    good = word(box)
    name, generation, end, signature = good.split(".")
    longer = f"{name}.{generation}.{int(end) + 1}.{signature}"
    wrong = [
        word(box, secret="x" * 32), word(box, installation="other"), word(box, generation=2), word(UNKNOWN), longer,
        good.replace(name, make(api)["id"]), good.upper(), good + "0", "x", harness.key()["secret"],
        "bgadmin_" + "a" * 32, "this-sandbox",
    ]  # fmt: skip
    for text in wrong:
        error_of(ask(inside, text), 401, "unauthorized")
    error_of(inside.get("/v1/me"), 401, "unauthorized")
    error_of(inside.get("/v1/health"), 401, "unauthorized")
    error_of(inside.get("/v1/nothing"), 401, "unauthorized")
    two = [("authorization", f"Bearer {good}"), ("authorization", f"Bearer {good}")]
    error_of(inside.get("/v1/me", headers=two), 401, "unauthorized")
    error_of(inside.get("/v1/me", headers={"authorization": f"Basic {good}"}), 401, "unauthorized")


def test_times_of_a_credential() -> None:
    caller, now = Caller(UNKNOWN, 1), 1_800_000_000.0
    assert credential.LIFETIME_S <= MAX_LIFETIME_S <= 15 * 60
    made = credential.make(SECRET, INSTALLATION, caller, now)
    assert credential.read(SECRET, INSTALLATION, made, now) == caller
    assert credential.read(SECRET, INSTALLATION, made, now + credential.LIFETIME_S - 1) == caller
    assert credential.read(SECRET, INSTALLATION, made, now + credential.LIFETIME_S) is None
    assert credential.read(SECRET, INSTALLATION, made, now + credential.LIFETIME_S - MAX_LIFETIME_S) == caller
    assert credential.read(SECRET, INSTALLATION, made, now + credential.LIFETIME_S - MAX_LIFETIME_S - 1) is None


def test_elsewhere_a_credential_is_worth_nothing(harness: Harness, api: httpx2.Client) -> None:
    box = make(api)["id"]
    for text in (word(box), "this-sandbox"):
        for path in ("/v1/me", f"/v1/sandboxes/{box}"):
            error_of(harness.client(text).get(path), 401, "unauthorized")


def test_only_while_it_runs(harness: Harness, api: httpx2.Client, inside: httpx2.Client) -> None:
    ended, deleted, none = make(api)["id"], make(api)["id"], make(api, identity=False)["id"]
    for box in (ended, deleted):
        assert ask(inside, word(box)).status_code == 200
    error_of(ask(inside, word(none)), 401, "unauthorized")
    assert api.get(f"/v1/sandboxes/{none}").json()["identity"] is False
    assert harness.peer.params("sandbox.create")["spec"]["identity"] is False
    harness.end(ended, "lifetime")
    harness.until(lambda: api.get(f"/v1/sandboxes/{ended}").json()["state"] == "ended")
    error_of(ask(inside, word(ended)), 401, "unauthorized")
    assert api.delete(f"/v1/sandboxes/{deleted}").status_code == 204
    error_of(ask(inside, word(deleted)), 401, "unauthorized")


def test_not_before_it_runs(own_harness: Harness) -> None:
    api = own_harness.project()
    own_harness.peer.fail["sandbox.create"] = RequestError("not yet")
    assert api.post("/v1/sandboxes", json={}).status_code == 400
    made = own_harness.peer.params("sandbox.create")["sandbox_id"]
    transport = httpx2.HTTPTransport(uds=str(own_harness.data.identity_socket))
    with httpx2.Client(base_url="http://bellglass", transport=transport) as inside:
        error_of(ask(inside, word(made)), 401, "unauthorized")


def test_the_sandbox_is_the_actor_in_the_audit(harness: Harness, api: httpx2.Client, inside: httpx2.Client) -> None:
    box = make(api)["id"]
    ask(inside, word(box), f"/v1/sandboxes/{box}", "DELETE")
    ask(inside, word(box), f"/v1/sandboxes/{UNKNOWN}", "DELETE")
    ask(inside, word(box), f"/v1/sandboxes/{box}/ports/8000", "PUT", json={})
    query = f"select action, status from audit where key_id = '{box}' order by seq"
    wanted = [("sandbox.delete", 403), ("sandbox.delete", 404), ("port.publish", 200)]
    harness.until(lambda: harness.database(query) == wanted)


def test_names_of_the_platform_are_reserved(api: httpx2.Client) -> None:
    box = make(api, env={"MY_BELLGLASS_TOKEN": "x", "bellglass_token": "x"})["id"]
    for name in ("BELLGLASS_TOKEN", "BELLGLASS_SANDBOX_ID", "BELLGLASS_API_KEY", "BELLGLASS_"):
        error = error_of(api.post("/v1/sandboxes", json={"env": {name: "secret"}}), 422, "invalid_request")
        assert error["details"]["field"] == "env" and "reserved" in error["message"] and "secret" not in str(error)
        body = {"command": ["true"], "env": {name: "secret"}}
        error_of(api.post(f"/v1/sandboxes/{box}/executions", json=body), 422, "invalid_request")
        assert api.post(f"/v1/sandboxes/{box}/executions", json={"command": ["true"]}).status_code == 200
