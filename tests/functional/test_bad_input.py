"""Bad input: a typed error in the one shape that names the value, and nothing half-made."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from bellglass.errors import InvalidRequest
from bellglass.ids import new_ulid

SHAPE = {"code", "message", "hint", "retryable", "details", "request_id"}
GOOD = {"template": "base", "cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "1m"}


@pytest.fixture(autouse=True)
def nothing_is_made(api: httpx2.Client, request: pytest.FixtureRequest) -> Iterator[None]:
    """No refusal leaves a sandbox behind, in whatever state."""

    def ids() -> set[str]:
        return {item["id"] for item in api.get("/v1/sandboxes", params={"state": "all", "limit": 200}).json()["items"]}

    before = ids()
    yield
    if "box" not in request.fixturenames:
        assert ids() == before


def refused(answer: httpx2.Response, *statuses: int) -> dict[str, Any]:
    """The error of a refusal, which has the one shape and one of these statuses."""
    assert answer.status_code in (statuses or (422,)), f"{answer.status_code}: {answer.text}"
    assert answer.headers["content-type"].startswith("application/json")
    error = answer.json()["error"]
    assert set(error) == SHAPE and set(answer.json()) == {"error"}
    assert error["message"] and error["request_id"] == answer.headers["x-request-id"]
    return error


def post(api: httpx2.Client, path: str, body: Any) -> httpx2.Response:
    """A body as it is, NaN and infinities too, which JSON writers refuse."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return api.post(path, content=raw, headers={"Content-Type": "application/json"})


def test_the_allowed_twin(api: httpx2.Client, box: Any) -> None:
    answer = post(api, "/v1/sandboxes", GOOD)
    assert answer.status_code == 201, answer.text
    assert api.delete(f"/v1/sandboxes/{answer.json()['id']}").status_code == 204
    assert post(api, f"/v1/sandboxes/{box.id}/executions", {"command": ["true"]}).status_code == 200


NUMBERS: list[Any] = [0, -1, 1e18, float("nan"), float("inf"), "", "x", "5 parsecs", True, [], {}, "-1", "0", "1e5"]


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
@pytest.mark.parametrize("field", ["cpus", "memory", "disk", "pids", "lifetime", "idle_timeout"])
def test_limits_and_times(api: httpx2.Client, field: str, value: Any) -> None:
    error = refused(post(api, "/v1/sandboxes", {**GOOD, field: value}), 422, 503)
    assert field in json.dumps(error), error


@pytest.mark.parametrize("value", ["0", "-1", "1e18", "soon", "nan"])
def test_times_are_refused_alike_by_sdk_and_command_line(stack: Any, value: str) -> None:
    with pytest.raises(InvalidRequest, match="lifetime"):
        stack.sandbox(lifetime=value)
    number = float(value) if value != "soon" else value
    with pytest.raises(InvalidRequest, match="lifetime"):
        stack.sandbox(lifetime=number)
    done = stack.command("create", f"--lifetime={value}")
    assert done.returncode != 0 and b"lifetime" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("value", [0.5, 1.5, "2"], ids=repr)
def test_pids_are_whole(api: httpx2.Client, value: Any) -> None:
    refused(post(api, "/v1/sandboxes", {**GOOD, "pids": value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("template", "no-such-template"),
        ("template", "../../etc"),
        ("template", ""),
        ("template", 5),
        ("template", "x" * 10_000),
        ("name", "-x"),
        ("name", "a/b"),
        ("name", "x" * 64),
        ("name", "é"),
        ("name", "a\0b"),
        ("owner", "x" * 10_000),
        ("labels", {"": "x"}),
        ("labels", {"k" * 1000: "x"}),
        ("labels", {"k": 5}),
        ("labels", {f"k{n}": "x" for n in range(1000)}),
        ("labels", {"bellglass.io/x": "x"}),
        ("env", {"A=B": "x"}),
        ("env", {"": "x"}),
        ("env", {"A": "x\0"}),
        ("env", {"A": 1}),
        ("env", [["A", "x"]]),
        ("inputs", {"../x": {"text": "x"}}),
        ("inputs", {"/abs": {"text": "x"}}),
        ("inputs", {"": {"text": "x"}}),
        ("inputs", {"a": {"text": "x", "b64": "eA=="}}),
        ("inputs", {"a": {"b64": "not base64!"}}),
        ("inputs", {"a": {}}),
        ("inputs", {"a": {"text": "1"}, "a/b": {"text": "2"}}),
        ("user", "a:b"),
        ("user", ""),
        ("workdir", "relative"),
        ("workdir", "/a\0b"),
        ("isolation", "stone"),
        ("at_least", "stone"),
        ("network", "wide open"),
        ("timeout", 5),
        ("no_such_field", 5),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_other_fields_of_a_create(api: httpx2.Client, field: str, value: Any) -> None:
    error = refused(post(api, "/v1/sandboxes", {**GOOD, field: value}), 404, 422, 501)
    assert field in json.dumps(error) or str(value)[:20] in error["message"], error
    if field == "timeout":
        assert "lifetime" in json.dumps(error)


def test_tiers_that_the_node_has_not(api: httpx2.Client) -> None:
    for more in ({"isolation": "microvm"}, {"at_least": "gvisor"}):
        error = refused(post(api, "/v1/sandboxes", {**GOOD, **more}), 422, 501, 503)
        assert next(iter(more.values())) in error["message"] and error["hint"]
    refused(post(api, "/v1/sandboxes", {**GOOD, "isolation": "container", "at_least": "container"}))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"5", b"\xff\xfe", b'{"template": NaN}', b"[" * 100_000, b'{"a":' * 5000],
    ids=lambda v: repr(v)[:20],
)
def test_bodies_that_are_none(api: httpx2.Client, shared_box: Any, body: bytes) -> None:
    for path in (
        "/v1/sandboxes",
        f"/v1/sandboxes/{shared_box.id}/executions",
        f"/v1/sandboxes/{shared_box.id}/files/mkdir",
    ):
        refused(post(api, path, body), 400, 422)


def test_a_body_that_is_too_big(api: httpx2.Client, shared_box: Any) -> None:
    refused(post(api, f"/v1/sandboxes/{shared_box.id}/files/mkdir", b'{"path": "' + b"x" * (2 << 20) + b'"}'), 413)
    refused(post(api, "/v1/sandboxes", b'{"template": "' + b"x" * (17 << 20) + b'"}'), 413)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ""},
        {"command": []},
        {"command": [""]},
        {"command": ["a\0b"]},
        {"command": "a\0b"},
        {"command": 5},
        {"command": [5]},
        {"command": {}},
        {"command": None},
        {},
        {"command": "true", "timeout": 0},
        {"command": "true", "timeout": -1},
        {"command": "true", "timeout": float("nan")},
        {"command": "true", "timeout": 601},
        {"command": "true", "timeout": "soon"},
        {"command": "true", "cwd": "/nope"},
        {"command": "true", "cwd": "a\0b"},
        {"command": "true", "cwd": ""},
        {"command": "true", "user": "nobody-of-that-name"},
        {"command": "true", "user": ""},
        {"command": "true", "env": {"A=B": ""}},
        {"command": "true", "stdin": {"b64": "!"}},
        {"command": "true", "stdin": 5},
        {"command": "true", "id": "short"},
        {"command": "true", "unknown": 1},
        {"command": ["x"] * 500_000},
    ],
    ids=lambda v: repr(v)[:40],
)
def test_executions(api: httpx2.Client, shared_box: Any, fields: dict[str, Any]) -> None:
    error = refused(post(api, f"/v1/sandboxes/{shared_box.id}/executions", fields), 404, 413, 422)
    assert error["code"] in ("invalid_request", "invalid_command", "not_found", "too_large")
    assert list(shared_box.executions(state="running")) == []


IDS = [
    "../../etc",
    "/",
    "a/../../b",
    "sb",
    "sb" + "a" * 21,
    "SB" + "A" * 20,
    "sb" + "1" * 20,
    "x" * 5000,
    "%00",
    "é",
    "*",
]


@pytest.mark.parametrize("identity", IDS, ids=lambda v: v[:20])
def test_ids_that_are_none(api: httpx2.Client, shared_box: Any, identity: str) -> None:
    from urllib.parse import quote

    safe = quote(identity, safe="")
    for method, path in (
        ("GET", f"/v1/sandboxes/{safe}"),
        ("DELETE", f"/v1/sandboxes/{safe}"),
        ("GET", f"/v1/sandboxes/{safe}/files?path=/etc/passwd"),
        ("GET", f"/v1/sandboxes/{safe}/executions"),
        ("GET", f"/v1/sandboxes/{shared_box.id}/executions/{safe}"),
        ("GET", f"/v1/sandboxes/{shared_box.id}/executions/{safe}/output"),
    ):
        refused(api.request(method, path), 404, 405, 414, 431)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Basic Zm9v", "Bearer " + "x" * 4000])
def test_keys_that_are_none(stack: Any, shared_box: Any, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    with httpx2.Client(base_url=stack.api_url, headers=headers, trust_env=False) as client:
        for method, path in (
            ("GET", "/v1/sandboxes"),
            ("POST", "/v1/sandboxes"),
            ("GET", f"/v1/sandboxes/{shared_box.id}"),
            ("DELETE", f"/v1/sandboxes/{shared_box.id}"),
            ("POST", f"/v1/sandboxes/{shared_box.id}/executions"),
            ("GET", f"/v1/sandboxes/{shared_box.id}/files?path=/etc/passwd"),
            ("GET", "/v1/templates"),
            ("GET", "/v1/me"),
            ("GET", "/v1/keys"),
            ("GET", "/v1/node"),
        ):
            error = refused(client.request(method, path), 401)
            assert error["code"] == "unauthorized"
            if header and len(header) > 12:
                assert header not in json.dumps(error), "a key is never repeated"
        assert client.get("/v1/health").status_code == 200


def test_a_project_key_is_no_admin_key(api: httpx2.Client, stack: Any) -> None:
    admin = {"Authorization": f"Bearer {stack.admin_key}"}
    assert api.get("/v1/node", headers=admin).status_code == 200
    for method, path in (("GET", "/v1/node"), ("GET", "/v1/projects"), ("POST", "/v1/keys")):
        body = {"project": "x"} if method == "POST" else None
        refused(api.request(method, path, json=body), 403)


def test_a_revoked_key_is_refused_at_once(api: httpx2.Client, stack: Any) -> None:
    admin = {"Authorization": f"Bearer {stack.admin_key}"}
    made = api.post("/v1/keys", json={"project": f"p-{secrets.token_hex(3)}", "label": "x"}, headers=admin).json()
    key = {"Authorization": f"Bearer {made['secret']}"}
    assert api.get("/v1/me", headers=key).status_code == 200
    assert api.delete(f"/v1/keys/{made['id']}", headers=admin).status_code == 204
    refused(api.get("/v1/me", headers=key), 401)


def test_methods_and_routes_that_are_none(api: httpx2.Client) -> None:
    refused(api.get("/v1/nothing"), 404)
    refused(api.put("/v1/sandboxes", json={}), 405)
    refused(api.get("/"), 404)


@pytest.mark.parametrize(
    ("route", "params"),
    [
        ("files", {}),
        ("files", {"path": "x", "unknown": "1"}),
        ("files/list", {"path": "/", "limit": "0"}),
        ("files/list", {"path": "/", "limit": "-1"}),
        ("files/list", {"path": "/", "limit": "many"}),
        ("files/list", {"path": "/", "recursive": "perhaps"}),
        ("executions", {"limit": "0"}),
        ("executions", {"cursor": "x"}),
        ("executions", {"state": "dreaming"}),
    ],
    ids=repr,
)
def test_queries(api: httpx2.Client, shared_box: Any, route: str, params: dict[str, str]) -> None:
    refused(api.get(f"/v1/sandboxes/{shared_box.id}/{route}", params=params))


@pytest.mark.parametrize("asked", ["bytes=5-1", "bytes=-", "lines=1-2", "bytes=a-b", "bytes=0-0,2-3"])
def test_ranges_that_are_none(api: httpx2.Client, shared_box: Any, asked: str) -> None:
    """RFC 9110 lets a server ignore a Range that it does not understand; it may not answer nonsense."""
    answer = api.get(f"/v1/sandboxes/{shared_box.id}/files", params={"path": "/etc/hostname"}, headers={"Range": asked})
    assert answer.status_code in (200, 416, 422)


def test_output_formats_that_are_none(api: httpx2.Client, shared_box: Any) -> None:
    path = f"/v1/sandboxes/{shared_box.id}/executions"
    answer = api.post(path, json={"command": "true"}, headers={"Accept": "image/png"})
    refused(answer, 406)
    unknown = api.get(f"{path}/{new_ulid()}/output")
    refused(unknown, 404)
