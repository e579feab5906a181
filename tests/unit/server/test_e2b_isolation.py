"""Through E2B's API projects are as far apart as natively, and a sandbox's tokens open nothing of another one."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest
from server_harness import Harness
from starlette.routing import Route

from bellglass.server.compat.e2b.app import FEATURES
from bellglass.server.compat.e2b.signatures import signature
from bellglass.server.compat.e2b.tokens import Tokens

UNKNOWN = "sb" + "7" * 20
MALFORMED = ("x", "sb", UNKNOWN.upper(), UNKNOWN + "7", UNKNOWN + "%0A", "%00", "sb%2e%2e", "a" * 5000, "é")
ROUTES = [
    (method, route.path)
    for feature in FEATURES
    for route in feature.routes
    if isinstance(route, Route) and "{sandbox_id}" in route.path
    for method in sorted((route.methods or set()) - {"HEAD"})
]


def e2b(harness: Harness, project: str) -> httpx2.Client:
    made = httpx2.Client(
        base_url=harness.url + "/compat/e2b", headers={"x-api-key": harness.key(project)["secret"]}, timeout=20
    )
    harness._clients.append(made)
    return made


def create(client: httpx2.Client) -> dict[str, Any]:
    return dict(client.post("/v2/sandboxes", json={"templateID": "base"}).json())


def shape(answer: httpx2.Response) -> str:
    assert answer.status_code == 404, answer.text
    headers = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "content-length")}
    return json.dumps([answer.json() | {"request_id": ""}, headers])


def test_another_projects_sandboxes_are_like_none(harness: Harness) -> None:
    ours, theirs = e2b(harness, "ours"), e2b(harness, "theirs")
    box = create(ours)["sandboxID"]
    assert len(ROUTES) >= 14

    def ask(client: httpx2.Client, method: str, path: str, id: str) -> httpx2.Response:
        body = {"json": {"timeout": 60}} if path.endswith(("/timeout", "/connect")) else {}
        return client.request(method, path.format(sandbox_id=id), **body)

    for method, path in ROUTES:
        before = len(harness.peer.calls)
        foreign = shape(ask(theirs, method, path, box))
        assert len(harness.peer.calls) == before, "nothing reaches the node"
        for id in (UNKNOWN, *MALFORMED):
            assert foreign == shape(ask(theirs, method, path, id)), (method, path, id)
    assert box not in theirs.get("/v2/sandboxes").text + theirs.get("/sandboxes").text
    assert box in ours.get("/v2/sandboxes").text
    of_both = {"sandbox_ids": f"{box},{UNKNOWN}"}
    assert theirs.get("/sandboxes/metrics", params=of_both).json() == {"sandboxes": {}}
    for method, path in sorted(ROUTES, key=lambda route: route[0] == "DELETE"):
        answer = ask(ours, method, path, box)
        assert answer.status_code < 300 or answer.status_code == 501, (method, path, answer.text)


def test_tokens_are_of_one_sandbox_and_one_purpose(harness: Harness) -> None:
    ours = e2b(harness, "ours")
    one, two = create(ours), create(ours)
    tokens = Tokens(harness.data.server_secret_file.read_text().strip())
    given = [one["envdAccessToken"], one["trafficAccessToken"], two["envdAccessToken"], two["trafficAccessToken"]]
    assert len(set(given)) == 4
    assert all(re.fullmatch("[0-9a-f]{64}", token) for token in given)
    assert [tokens.opens_envd(one["sandboxID"], token) for token in given] == [True, False, False, False]
    assert [tokens.opens_ports(two["sandboxID"], token) for token in given] == [False, False, False, True]
    assert not any(tokens.opens_envd(one["sandboxID"], wrong) for wrong in (None, "", "é", "\udc80", given[0][:-1]))
    assert Tokens("another secret").envd(one["sandboxID"]) != given[0]


def visit(harness: Harness, **headers: str) -> httpx2.Response:
    return harness.client(None).get("/health", headers={name.replace("_", "-"): text for name, text in headers.items()})


def test_who_is_not_there(harness: Harness) -> None:
    """Death looks like death: whatever the id names, and whoever asks."""
    box = create(e2b(harness, "ours"))["sandboxID"]
    answers = [visit(harness, e2b_sandbox_id=id, e2b_sandbox_port="1") for id in (UNKNOWN, "x", UNKNOWN.upper())]
    for answer in answers:
        assert answer.status_code == 502
        body = answer.json()
        assert body.pop("sandboxId")
        assert body == {"message": "The sandbox was not found", "code": 502}
        assert answer.headers["should-retry"] == "false"
    assert visit(harness, e2b_sandbox_id=box, e2b_sandbox_port="1").status_code != 502
    for port in ("0", "65536", "x", "-1", "1 2", "1_0"):
        assert visit(harness, e2b_sandbox_id=box, e2b_sandbox_port=port).status_code == 400


def test_an_url_that_a_client_signed_names_its_sandbox(harness: Harness) -> None:
    ours = e2b(harness, "ours")
    one, two = create(ours), create(ours)
    nobody = harness.client(None)

    def named(token: str, **more: str) -> str | None:
        query = {"path": "a b.txt", "username": "user", "signature_expiration": "1"} | more
        signed = signature(query["path"], "read", query["username"], token, query["signature_expiration"])
        seen: list[str] = []

        async def serve(request: Any, target: Any) -> Any:
            seen.append(target.sandbox_id)
            from starlette.responses import Response

            return Response()

        from bellglass.server.compat.e2b import app, routing

        before = dict(app.PORTS)
        app.PORTS[routing.ENVD_PORT] = serve  # type: ignore[index]
        try:
            answer = nobody.get("/files", params=query | {"signature": signed})
        finally:
            app.PORTS.clear()  # type: ignore[attr-defined]
            app.PORTS.update(before)  # type: ignore[attr-defined]
        assert (answer.status_code == 200) is bool(seen)
        return seen[0] if seen else None

    assert named(one["envdAccessToken"]) == one["sandboxID"]
    assert named(two["envdAccessToken"]) == two["sandboxID"]
    assert named(one["trafficAccessToken"]) is None
    assert nobody.get("/files", params={"path": "x", "signature": "v1_x"}).status_code == 401
    assert nobody.get("/files", params={"path": "x"}).status_code == 401


@pytest.mark.parametrize("header", ["x-api-key", "authorization", "x-access-token"])
def test_a_token_is_no_key(harness: Harness, header: str) -> None:
    box = create(e2b(harness, "ours"))
    prefix = "Bearer " if header == "authorization" else ""
    for token in (box["envdAccessToken"], box["trafficAccessToken"]):
        answers = [
            harness.client(None).get(path + f"/sandboxes/{box['sandboxID']}", headers={header: prefix + token})
            for path in ("/compat/e2b", "/v1")
        ]
        assert [answer.status_code for answer in answers] == [401, 401]


def test_a_sandboxs_ports_open_with_its_own_tokens_alone(harness: Harness) -> None:
    """Through the headers and through the name, at what answers for envd and for the interpreter."""
    ours, theirs = e2b(harness, "ours"), e2b(harness, "theirs")
    box, sibling, foreign = create(ours), create(ours), create(theirs)
    nobody = harness.client(None)

    def status(port: int, path: str, body: dict[str, Any], header: str, token: str | None) -> list[int]:
        shown = {header: token} if token is not None else {}
        by_headers = {"e2b-sandbox-id": box["sandboxID"], "e2b-sandbox-port": str(port)}
        by_name = {"host": f"{port}-{box['sandboxID']}.localhost"}
        base = f"http://127.0.0.1:{harness.previews_port}"
        return [
            nobody.post(path, json=body, headers={**shown, **by_headers}).status_code,
            nobody.post(base + path, json=body, headers={**shown, **by_name}).status_code,
        ]

    for port, path, header, right in (
        (49983, "/process.Process/List", "x-access-token", "envdAccessToken"),
        (49999, "/contexts", "e2b-traffic-access-token", "trafficAccessToken"),
    ):
        other = "trafficAccessToken" if right == "envdAccessToken" else "envdAccessToken"
        for wrong in (None, "", "x", sibling[right], foreign[right], box[other], ours.headers["x-api-key"]):
            for found in status(port, path, {}, header, wrong):
                assert found in (401, 403), (port, wrong)
        for found in status(port, path, {}, header, box[right]):
            assert found not in (401, 403), "with the right one the door opens"
