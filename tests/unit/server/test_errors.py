"""Everything that goes wrong answers in the one shape, with a request id, and names the value."""

from __future__ import annotations

import base64
import socket

import httpx2
import pytest
from server_harness import ADMIN, Harness, error_of

from bellglass.errors import InvalidRequest
from bellglass.link import connection
from bellglass.server.files import watch

NESTED = "[" * 5000 + "]" * 5000
"""Deeper than any reader's stack."""
DEEP = base64.urlsafe_b64encode(NESTED.encode()).decode().rstrip("=")


def raw(harness: Harness, data: bytes) -> bytes:
    host, port = harness.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_unknown_route_and_method(api: httpx2.Client) -> None:
    error_of(api.get("/v1/nothing"), 404, "not_found")
    error_of(api.get("/"), 404, "not_found")
    refused = api.put("/v1/sandboxes")
    assert error_of(refused, 405, "method_not_allowed")["details"]["allowed"] == refused.headers["allow"]


def test_a_network_of_no_kind_is_told_the_kinds(api: httpx2.Client) -> None:
    for good in ("deny", "open", {"allow": ["api.example.com:443"]}):
        box = api.post("/v1/sandboxes", json={"network": good})
        assert box.status_code == 201, box.text
        assert api.delete(f"/v1/sandboxes/{box.json()['id']}").status_code == 204
    for bad in ("allow", 7, ["api.example.com"]):
        error = error_of(api.post("/v1/sandboxes", json={"network": bad}), 422, "invalid_request")
        assert error["details"]["field"] == "network" and '{"allow": ["api.example.com:443"]}' in error["hint"]


def test_request_id_is_taken_when_sane(api: httpx2.Client) -> None:
    assert api.get("/v1/health", headers={"x-request-id": "my-id.7"}).headers["x-request-id"] == "my-id.7"
    for junk in ("has space", "a" * 129, "semi;colon", "ü".encode()):
        answer = api.get("/v1/nothing", headers={"x-request-id": junk})
        assert error_of(answer, 404)["request_id"].startswith("rq")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"[]", "not valid"),
        (b"null", "not valid"),
        (b'"x"', "not valid"),
        (b'{"cpus": NaN}', "cpus"),
        (b'{"cpus": Infinity}', "cpus"),
        (b'{"memory": NaN}', "memory"),
        (b'{"lifetime": -Infinity}', "lifetime"),
        (b'{"name": "\xff\xfe"}', "not JSON"),
        (b'{"name": "\\ud800"}', "not JSON"),
        (b'{"owner": "a\\u0000b"}', "owner"),
        (b'{"cpus": 1e999}', "cpus"),
        (b"[" * 100_000, "not JSON"),
        (b'{"cpus": true}', "cpus"),
        (b'{"pids": "512"}', "pids"),
        (b'{"labels": {"a": 1}}', "labels.a"),
        (b'{"labels": []}', "labels"),
        (b'{"memory": []}', "memory"),
    ],
)
def test_bodies_that_are_none(api: httpx2.Client, body: bytes, named: str) -> None:
    answer = api.post("/v1/sandboxes", content=body, headers={"content-type": "application/json"})
    error = error_of(answer, 422, "invalid_request")
    assert named in error["message"], error
    assert error["details"]["field"]


def test_wrong_content_type(api: httpx2.Client) -> None:
    answer = api.post("/v1/sandboxes", content=b"{}", headers={"content-type": "text/plain"})
    assert error_of(answer, 422)["details"]["field"] == "content-type"
    allowed = api.post("/v1/sandboxes", content=b"{}", headers={"content-type": "application/json; charset=utf-8"})
    assert allowed.status_code == 201


def test_a_create_that_takes_too_much_on_its_way_leaves_nothing(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six bytes a character: inputs within their limit could break the link, with all that others had open on it."""
    monkeypatch.setattr(connection, "MAX_OPEN_BYTES", 2**20)
    api = harness.project()
    large = {"name": "too-much", "inputs": {"a": {"text": "\u00e9" * 2**18}}}
    error = error_of(api.post("/v1/sandboxes", json=large), 413, "too_large")
    assert error["details"]["limit_bytes"] == 2**20
    assert api.get("/v1/sandboxes", params={"state": "all", "name": "too-much"}).json()["items"] == []
    assert api.post("/v1/sandboxes", json={"inputs": {"a": {"text": "e" * 2**18}}}).status_code == 201


def test_body_limits(api: httpx2.Client) -> None:
    made = api.post("/v1/sandboxes", json={"inputs": {"a": {"text": "x" * (2 * 2**20)}}})
    assert made.status_code == 201, "a create holds inputs: over 1 MiB is fine"
    url = f"/v1/sandboxes/{made.json()['id']}/executions"
    fits = api.post(url, json={"command": ["true"], "stdin": "x" * 500_000})
    assert fits.status_code == 200, fits.text
    error = error_of(api.post(url, json={"command": ["true", "x" * 2**20]}), 413, "too_large")
    assert error["details"]["limit_bytes"] == 2**20

    def chunks() -> object:
        for _ in range(20):
            yield b"x" * 100_000

    error_of(api.post(url, content=chunks(), headers={"content-type": "application/json"}), 413, "too_large")
    too_large = api.post("/v1/sandboxes", content=b"x" * (17 * 2**20), headers={"content-type": "application/json"})
    error_of(too_large, 413, "too_large")
    assert api.get("/v1/health").status_code == 200, "the connection goes on"


def test_unknown_fields_get_a_hint(api: httpx2.Client) -> None:
    for field, meant in (("timeout", "lifetime"), ("memroy", "memory"), ("lable", "labels"), ("image", "template")):
        error = error_of(api.post("/v1/sandboxes", json={field: 5}), 422, "invalid_request")
        assert field in error["message"]
        assert error["hint"] == f"did you mean {meant!r}?"
    error = error_of(api.get("/v1/sandboxes", params={"stat": "all"}), 422)
    assert error["hint"] == "did you mean 'state'?"


def test_query_values(api: httpx2.Client) -> None:
    assert api.get("/v1/sandboxes", params={"limit": 1000}).status_code == 200
    for limit in ("0", "1001", "-1", "NaN", "x", "1e3", "99999999999999999999"):
        error = error_of(api.get("/v1/sandboxes", params={"limit": limit}), 422)
        assert error["details"]["field"] == "limit"
        assert limit in error["message"]
    error_of(api.get("/v1/sandboxes", params={"state": "runing"}), 422)
    error_of(api.get("/v1/sandboxes", params={"label": "novalue"}), 422)
    for cursor in ("x", "AAAA", "%%%", "W10", "bnVsbA", "é", "WzEsMl0", DEEP):
        assert error_of(api.get("/v1/sandboxes", params={"cursor": cursor}), 422)["details"]["field"] == "cursor"
    error_of(api.get("/v1/sandboxes?owner=%ff%fe"), 422)


def test_json_in_odd_places_may_be_nested_as_it_likes(api: httpx2.Client) -> None:
    url = f"/v1/sandboxes/{api.post('/v1/sandboxes', json={}).json()['id']}"
    error = error_of(api.get(f"{url}/logs", params={"cursor": DEEP}), 422)
    assert error["details"]["field"] == "cursor"
    for attributes, status in (('{"a": "b"}', 201), (NESTED, 422)):
        headers = {"x-bellglass-attributes": attributes}
        found = api.put(f"{url}/files", params={"path": "f"}, content=b"", headers=headers)
        assert found.status_code == status, found.text
    assert watch._token('{"type": "sync", "token": 7}') == 7
    for message in (NESTED, '{"type": "sync", "token": 1e999}'):
        with pytest.raises(InvalidRequest):
            watch._token(message)


def test_bytes_that_are_no_http(harness: Harness) -> None:
    for junk in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: x\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nbad header\r\n\r\n",
    ):
        answer = raw(harness, junk)
        assert answer.startswith(b"HTTP/1.1 400"), answer
        assert b'{"error":{"code":"bad_request"' in answer


def test_header_junk(harness: Harness) -> None:
    for name in (b"authorization", b"idempotency-key", b"accept", b"range", b"content-type", b"x-request-id"):
        junk = name + b": " + bytes(range(128, 256))
        answer = raw(
            harness,
            b"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n"
            + (b"" if name == b"authorization" else b"authorization: Bearer " + ADMIN.encode() + b"\r\n")
            + junk
            + b"\r\n\r\n{}",
        )
        assert answer.startswith(b"HTTP/1.1 4"), answer
        assert b'"request_id":' in answer


def test_faults_of_ours_are_told_in_the_shape(
    harness: Harness, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*arguments: object) -> None:
        raise ZeroDivisionError("canary")

    monkeypatch.setattr(type(harness.application.services.sandboxes), "get", fault)
    answer = api.get("/v1/sandboxes/sb" + "a" * 20)
    error = error_of(answer, 500, "internal")
    assert "canary" not in answer.text
    assert error["hint"]


def test_no_secret_in_errors(api: httpx2.Client) -> None:
    canary = "canary-6f1d"
    for body in (
        {"env": {"TOKEN": canary + "\0"}},
        {"env": {"TOKEN": [canary]}},
        {"env": canary},
        {"inputs": {"a": {"b64": canary}}},
        {"inputs": {"a": canary}},
        {"env": {"TOKEN": canary * 100_000}},
    ):
        answer = api.post("/v1/sandboxes", json=body)
        error_of(answer, 422)
        assert canary not in answer.text
