"""E2B's control plane on the wire: exact statuses and bodies, both generations, and what means the same natively."""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_harness import Harness

from bellglass.server.compat.e2b.control.bodies import Body
from bellglass.server.compat.e2b.control.network import _Range, update

DETAIL = {
    "templateID", "sandboxID", "clientID", "startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "state",
    "envdVersion",
}  # fmt: skip


@pytest.fixture(scope="module")
def e2b(harness: Harness) -> httpx2.Client:
    return client(harness, "p1")


def client(harness: Harness, project: str, **headers: str) -> httpx2.Client:
    made = httpx2.Client(
        base_url=harness.url + "/compat/e2b",
        headers={"x-api-key": harness.key(project)["secret"], **headers},
        timeout=20,
    )
    harness._clients.append(made)
    return made


def create(e2b: httpx2.Client, path: str = "/v2/sandboxes", **body: Any) -> dict[str, Any]:
    answer = e2b.post(path, json={"templateID": "base", **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def refused(answer: httpx2.Response, status: int, code: str | None = None) -> str:
    """The message, after checking that the body has E2B's shape."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["code"] == status
    assert isinstance(body["message"], str) and body["message"]
    if code is not None:
        assert body["error_code"] == code
    return str(body["message"])


@pytest.mark.parametrize("path", ["/v2/sandboxes", "/sandboxes"])
def test_a_life(e2b: httpx2.Client, api: httpx2.Client, path: str) -> None:
    more: dict[str, Any] = {} if path.startswith("/v2") else {"secure": True, "autoPause": False}
    made = create(e2b, path, timeout=60, metadata={"k e": "v=1"}, envVars={"A": "b"}, **more)
    assert {"templateID", "sandboxID", "clientID", "envdVersion", "envdAccessToken"} <= set(made)
    assert re.fullmatch("[a-z0-9]+", made["sandboxID"])
    assert None not in made.values()
    id = made["sandboxID"]
    native = api.get(f"/v1/sandboxes/{id}").json()
    assert (native["labels"], native["env"], native["lifetime_s"]) == ({"k e": "v=1"}, {"A": "b"}, 60)
    detail = e2b.get(f"/sandboxes/{id}").json()
    assert set(detail) >= DETAIL | {"metadata", "envdAccessToken", "domain", "lifecycle"}
    assert None not in detail.values()
    assert (detail["state"], detail["metadata"]) == ("running", {"k e": "v=1"})
    assert detail["endAt"] == native["expires_at"]
    assert e2b.delete(f"/sandboxes/{id}").status_code == 204
    refused(e2b.delete(f"/sandboxes/{id}"), 404)
    refused(e2b.get(f"/sandboxes/{id}"), 404)
    assert api.get(f"/v1/sandboxes/{id}").status_code == 404


def test_keys(harness: Harness, e2b: httpx2.Client) -> None:
    assert e2b.get("/v2/sandboxes").status_code == 200
    anonymous = harness.client(None)
    refused(anonymous.get("/compat/e2b/v2/sandboxes"), 401, "unauthorized")
    unknown = refused(anonymous.get("/compat/e2b/v2/sandboxes", headers={"x-api-key": "e2b_" + "0" * 40}), 401)
    assert "unknown" in unknown and "bellglass compat e2b" in unknown and "Bearer" not in unknown
    refused(anonymous.get("/compat/e2b/v2/sandboxes", headers={"x-api-key": b"\x80"}), 401)
    native = {"authorization": f"Bearer {harness.key()['secret']}"}
    refused(anonymous.get("/compat/e2b/v2/sandboxes", headers=native), 401)
    made = harness.admin.post("/v1/keys", json={"project": "p1", "format": "e2b"}).json()
    assert re.fullmatch("e2b_[0-9a-f]{40}", made["secret"])
    with_it = {"x-api-key": made["secret"]}
    assert anonymous.get("/compat/e2b/v2/sandboxes", headers=with_it).status_code == 200
    assert harness.client(made["secret"]).get("/v1/sandboxes").status_code == 200
    assert harness.admin.delete(f"/v1/keys/{made['id']}").status_code == 204
    refused(anonymous.get("/compat/e2b/v2/sandboxes", headers=with_it), 401)
    assert harness.admin.post("/v1/keys", json={"project": "p1", "format": "x"}).status_code == 422


def test_a_client_that_knows_the_servers_address_alone_is_told_the_prefix(harness: Harness) -> None:
    anonymous, key = harness.client(None), {"x-api-key": harness.key("p1")["secret"]}
    assert anonymous.get("/compat/e2b/v2/sandboxes", headers=key).status_code == 200
    for path in ("/v2/sandboxes", "/sandboxes", "/templates/x"):
        assert "set E2B_API_URL to this address and /compat/e2b" in refused(anonymous.get(path, headers=key), 404)
        assert "error" in anonymous.get(path).json(), "others get the native shape"
    assert anonymous.get("/v1/health", headers=key).status_code == 200


def test_connect_never_shortens(e2b: httpx2.Client) -> None:
    """The node of these tests says 2030 for whatever changes the end."""
    id = create(e2b, timeout=600)["sandboxID"]
    end = e2b.get(f"/sandboxes/{id}").json()["endAt"]
    for path in ("/v2/sandboxes", "/sandboxes"):
        answer = e2b.post(f"{path}/{id}/connect", json={"timeout": 60})
        assert answer.status_code == 200
        assert answer.json()["envdAccessToken"] == e2b.get(f"/sandboxes/{id}").json()["envdAccessToken"]
    assert e2b.post(f"/v2/sandboxes/{id}/connect", json={}).status_code == 200
    assert e2b.post(f"/sandboxes/{id}/refreshes", json={"duration": 10}).status_code == 204
    assert e2b.get(f"/sandboxes/{id}").json()["endAt"] == end
    assert e2b.post(f"/v2/sandboxes/{id}/connect", json={"timeout": 3000}).status_code == 200
    assert e2b.get(f"/sandboxes/{id}").json()["endAt"].startswith("2030")
    refused(e2b.post(f"/sandboxes/{id}/connect", json={"timeout": 0}), 400)


def test_times_beyond_all_numbers(e2b: httpx2.Client) -> None:
    id = create(e2b, timeout=600)["sandboxID"]
    assert e2b.post(f"/sandboxes/{id}/refreshes", json={"duration": -(10**400)}).status_code == 204
    refused(e2b.post(f"/sandboxes/{id}/refreshes", json={"duration": 10**400}), 400)
    for path in (f"/sandboxes/{id}/timeout", f"/sandboxes/{id}/connect"):
        refused(e2b.post(path, json={"timeout": 10**400}), 400)


def test_timeouts(harness: Harness, e2b: httpx2.Client) -> None:
    id = create(e2b)["sandboxID"]
    assert harness.peer.params("sandbox.create")["spec"]["lifetime_s"] == 300
    assert e2b.post(f"/sandboxes/{id}/timeout", json={"timeout": 20}).status_code == 204
    assert harness.peer.params("sandbox.update")["lifetime_s"] == 20
    assert e2b.post(f"/sandboxes/{id}/timeout", json={"timeout": 0}).status_code == 204
    refused(e2b.get(f"/sandboxes/{id}"), 404)
    for timeout in (0, -1, "60", 1.5, True, 10**9, 10**400):
        refused(e2b.post("/sandboxes", json={"templateID": "base", "timeout": timeout}), 400)


def test_what_ended_is_not_there(harness: Harness, e2b: httpx2.Client, api: httpx2.Client) -> None:
    id = create(e2b, metadata={"which": "ended"})["sandboxID"]
    harness.end(id, "lifetime")
    harness.until(lambda: api.get(f"/v1/sandboxes/{id}").json()["state"] == "ended")
    refused(e2b.get(f"/sandboxes/{id}"), 404)
    refused(e2b.post(f"/v2/sandboxes/{id}/connect", json={}), 404)
    assert e2b.get("/v2/sandboxes", params={"metadata": "which=ended"}).json() == []
    assert api.get(f"/v1/sandboxes/{id}").status_code == 200, "natively it stays readable"
    refused(e2b.delete(f"/sandboxes/{id}"), 404)
    assert api.get(f"/v1/sandboxes/{id}").status_code == 404, "until somebody wants nothing of it kept"


def test_creates_that_are_refused(e2b: httpx2.Client) -> None:
    create(e2b, autoPause=False, autoResume={"enabled": False}, unknown=None, iam={}, mcp=None, volumeMounts=[])
    refused(e2b.post("/v2/sandboxes", json={"templateID": "nope"}), 404)
    refused(e2b.post("/v2/sandboxes", json={}), 400)
    refused(e2b.post("/v2/sandboxes", content=b"{"), 400)
    refused(e2b.post("/v2/sandboxes", json=[1]), 400)
    for wrong in (
        {"metadata": {"a": 1}}, {"metadata": []}, {"metadata": {"a=b": ""}}, {"envVars": {"": "x"}},
        {"templateID": 5}, {"somethingNew": True}, {"autoPauseMemory": False},
    ):  # fmt: skip
        refused(e2b.post("/v2/sandboxes", json={"templateID": "base", **wrong}), 400)
    for missing in (
        {"autoPause": True}, {"autoResume": {"enabled": True}}, {"volumeMounts": [{"name": "a", "path": "/a"}]},
        {"mcp": {"x": {}}}, {"iam": {"tokens": {"a": {}}}},
    ):  # fmt: skip
        answer = e2b.post("/v2/sandboxes", json={"templateID": "base", **missing})
        refused(answer, 501, "not_supported")
        assert answer.headers["should-retry"] == "false"


def test_the_same_idempotency_key(e2b: httpx2.Client) -> None:
    body = {"templateID": "base", "metadata": {"a": "b"}}
    answers = [e2b.post("/v2/sandboxes", json=body, headers={"idempotency-key": "once"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    refused(e2b.post("/v2/sandboxes", json={"templateID": "base"}, headers={"idempotency-key": "once"}), 409)


def test_pages(harness: Harness) -> None:
    e2b = client(harness, "pages")
    made = [create(e2b, metadata={"n": str(n), "all": "1"})["sandboxID"] for n in range(5)]

    def ids(**query: Any) -> list[str]:
        found, token = [], None
        while True:
            answer = e2b.get("/v2/sandboxes", params={**query, **({"nextToken": token} if token else {})})
            assert answer.status_code == 200, answer.text
            assert len(answer.json()) <= query.get("limit", 100)
            found += [item["sandboxID"] for item in answer.json()]
            token = answer.headers.get("x-next-token")
            if not token:
                return found

    newest = made[::-1]
    assert ids() == ids(limit=2) == ids(limit=5) == ids(state="running,paused", limit=1) == newest
    assert ids(order="asc", limit=2) == made
    assert ids(state="paused") == []
    assert ids(template="base", limit=3) == newest
    assert ids(template="no-such") == []
    since = e2b.get(f"/sandboxes/{made[2]}").json()["startedAt"]
    assert ids(startedAfter=since) == newest[:3]
    assert ids(startedAfter=since.replace("Z", "+00:00"), order="asc", limit=1) == made[2:]
    assert [item["sandboxID"] for item in e2b.get("/sandboxes").json()] == newest
    for wrong in (
        {"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"}, {"state": "ended"}, {"startedAfter": "noon"},
        {"startedAfter": "9999-12-31T23:59:59-12:00"}, {"startedAfter": "0001-01-01T00:00:00+12:00"},
        {"startedAfter": "2026-01-01T00:00:00"}, {"nextToken": "x"}, {"metadata": "x"},
    ):  # fmt: skip
        refused(e2b.get("/v2/sandboxes", params=wrong), 400)


@pytest.mark.parametrize("key,value", [("plain", "text"), ("k e", "v+1 &=%"), ("näh", "ü/?#"), ("a.b/c", "")])
def test_metadata_filters(e2b: httpx2.Client, key: str, value: str) -> None:
    """As the clients encode them: each name and value, then the form, then the query."""
    made = create(e2b, metadata={key: value, "more": "x"})["sandboxID"]
    create(e2b, metadata={key: value + "other"})
    text = urlencode({quote(key): quote(value)})
    for path in ("/v2/sandboxes", "/sandboxes"):
        found = e2b.get(path, params={"metadata": text}).json()
        assert [item["sandboxID"] for item in found] == [made]
        assert found[0]["metadata"] == {key: value, "more": "x"}
        both = urlencode({quote(key): quote(value), "more": "y"})
        assert e2b.get(path, params={"metadata": both}).json() == []


ALL = "0.0.0.0/0"


@pytest.mark.parametrize(
    ("body", "native", "shown"),
    [
        ({}, "open", None),
        ({"allow_internet_access": True}, "open", None),
        ({"allow_internet_access": False}, "deny", {"denyOut": [ALL]}),
        ({"network": {"denyOut": [ALL]}}, "deny", {"denyOut": [ALL]}),
        ({"network": {"denyOut": ["all"], "allowOut": ["all"]}}, "open", None),
        ({"network": {"allowOut": ["203.0.114.7"]}}, "open", None),
        ({"network": {"denyOut": ["203.0.114.7", "::/0"]}}, "deny", {"denyOut": [ALL]}),
        ({"network": {"denyOut": ["203.0.114.7/0"]}}, "deny", {"denyOut": [ALL]}),
        ({"network": {"denyOut": ["203.0.114.7"], "allowOut": ["0.0.0.0/0"]}}, "open", None),
        ({"network": {"denyOut": ["203.0.114.7"], "allowOut": ["203.0.114.0/24"]}}, "open", None),
        (
            {"network": {"denyOut": ["203.0.114.7", "203.0.115.9/24", "2a00::7", "::ffff:1.2.3.4"]}},
            {"mode": "open", "deny": ["203.0.114.7/32", "203.0.115.0/24", "2a00::7/128", "1.2.3.4/32"]},
            {"denyOut": ["203.0.114.7/32", "203.0.115.0/24", "2a00::7/128", "1.2.3.4/32"]},
        ),
        (
            {"network": {"denyOut": ["203.0.114.0/30", "8.8.8.8"], "allowOut": ["::ffff:203.0.114.2", "2a00::/16"]}},
            {"mode": "open", "deny": ["203.0.114.0/31", "203.0.114.3/32", "8.8.8.8/32"]},
            {"denyOut": ["203.0.114.0/31", "203.0.114.3/32", "8.8.8.8/32"]},
        ),
        (
            {"allow_internet_access": False, "network": {"denyOut": ["8.8.8.8"], "allowOut": ["203.0.114.7"]}},
            [{"host": None, "cidr": "203.0.114.7/32", "ports": "any", "protocol": "tcp"}],
            {"allowOut": ["203.0.114.7/32"], "denyOut": [ALL]},
        ),
        (
            {"network": {"denyOut": [ALL], "allowOut": ["API.example.com"], "dnsServers": []}},
            [{"host": "api.example.com", "cidr": None, "ports": [80, 443], "protocol": "tcp"}],
            {"allowOut": ["api.example.com"], "denyOut": [ALL]},
        ),
        (
            {"allow_internet_access": False, "network": {"allowOut": ["*.example.com", "203.0.114.7"]}},
            [
                {"host": "*.example.com", "cidr": None, "ports": [80, 443], "protocol": "tcp"},
                {"host": None, "cidr": "203.0.114.7/32", "ports": "any", "protocol": "tcp"},
            ],
            {"allowOut": ["*.example.com", "203.0.114.7/32"], "denyOut": [ALL]},
        ),
    ],
)
def test_networks(e2b: httpx2.Client, api: httpx2.Client, body: Any, native: Any, shown: Any) -> None:
    wanted = {"presets": [], "allow": native} if isinstance(native, list) else native
    id = create(e2b, **body)["sandboxID"]
    assert api.get(f"/v1/sandboxes/{id}").json()["network"] == wanted
    detail = e2b.get(f"/sandboxes/{id}").json()
    assert detail.get("network", {}).get("denyOut") == (shown or {}).get("denyOut")
    assert detail["allowInternetAccess"] is (native != "deny")
    change = {**body.get("network", {}), **{key: value for key, value in body.items() if key != "network"}}
    other = create(e2b, allow_internet_access=native == "deny")["sandboxID"]
    assert e2b.put(f"/sandboxes/{other}/network", json=change).status_code == 204
    assert api.get(f"/v1/sandboxes/{other}").json()["network"] == wanted
    assert e2b.put(f"/sandboxes/{other}/network", json={}).status_code == 204
    assert api.get(f"/v1/sandboxes/{other}").json()["network"] == "open"


@pytest.mark.parametrize(
    ("network", "status"),
    [
        ({"denyOut": ["0.0.0.0/1"], "allowOut": [f"9.{n}.0.1" for n in range(0, 256, 2)]}, 501),
        ({"denyOut": ["203.0.114.0/24"], "allowOut": ["example.com"]}, 400),
        ({"denyOut": ["fe80::1%eth0"]}, 400),
        ({"denyOut": ["203.0.114.7"] * 257}, 400),
        ({"denyOut": ["203.0.114.7"], "allowOut": ["203.0.114.7"] * 257}, 400),
        ({"allowOut": ["::/0"], "denyOut": [ALL]}, 400),
        ({"denyOut": ["example.com"]}, 400),
        ({"allowOut": ["example.com"]}, 400),
        ({"allowOut": ["com", "*"], "denyOut": [ALL]}, 400),
        ({"allowOut": ["127.0.0.1"], "denyOut": [ALL]}, 400),
        ({"allowOut": "x"}, 400),
        ({"dnsServers": ["192.0.2.1"]}, 501),
        ({"rules": {"example.com": [{"transform": {"headers": {"a": "b"}}}]}}, 501),
        ({"egressProxy": {"address": "proxy.example:1080"}}, 501),
        ({"somethingNew": 1}, 400),
    ],
)
def test_networks_that_are_refused(e2b: httpx2.Client, network: Any, status: int) -> None:
    refused(e2b.post("/v2/sandboxes", json={"templateID": "base", "network": network}), status)
    id = create(e2b)["sandboxID"]
    refused(e2b.put(f"/sandboxes/{id}/network", json=network), status)


def test_the_host_that_programs_get(e2b: httpx2.Client, api: httpx2.Client) -> None:
    id = create(e2b, network={"maskRequestHost": "localhost:${PORT}"})["sandboxID"]
    assert e2b.get(f"/sandboxes/{id}").json()["network"]["maskRequestHost"] == "localhost:${PORT}"
    assert api.get(f"/v1/sandboxes/{id}").json()["auto_publish_host"] == "localhost:${PORT}"
    assert "maskRequestHost" not in e2b.get(f"/sandboxes/{create(e2b)['sandboxID']}").json()["network"]
    wrong = e2b.post("/v2/sandboxes", json={"templateID": "base", "network": {"maskRequestHost": "a b"}})
    assert "network.maskRequestHost" in refused(wrong, 400)


def test_ports_that_speak_tls(e2b: httpx2.Client, api: httpx2.Client) -> None:
    id = create(e2b, network={"httpsPorts": [8443]})["sandboxID"]
    assert e2b.get(f"/sandboxes/{id}").json()["network"]["httpsPorts"] == [8443]
    assert api.get(f"/v1/sandboxes/{id}").json()["auto_publish_tls"] == [8443]
    for ports in ([0], ["x"], [True], [443] * 65):
        wrong = e2b.post("/v2/sandboxes", json={"templateID": "base", "network": {"httpsPorts": ports}})
        assert "network.httpsPorts" in refused(wrong, 400)


def test_templates(e2b: httpx2.Client) -> None:
    assert e2b.get("/templates/aliases/base").json() == {"templateID": "base", "public": True}
    refused(e2b.get("/templates/aliases/nope"), 404)
    refused(e2b.get("/templates/aliases/ns%2Fname%3Atag"), 404)


def test_unknown_routes(e2b: httpx2.Client) -> None:
    refused(e2b.get("/v9/sandboxes"), 404)
    refused(e2b.put("/v2/sandboxes", json={}), 405)
    refused(e2b.get("/"), 404)


def test_aliases_of_templates(harness: Harness, e2b: httpx2.Client, api: httpx2.Client) -> None:
    """One alias is set where the settings say nothing; here its template is not built."""
    refused(e2b.post("/v2/sandboxes", json={"templateID": "code-interpreter-v1"}), 404)
    built = [*harness.peer.templates, {**harness.peer.templates[0], "name": "interpreter"}]
    harness.peer.templates, before = built, harness.peer.templates
    try:
        for alias in ("code-interpreter-v1", "interpreter"):
            assert e2b.get(f"/templates/aliases/{alias}").json() == {"templateID": "interpreter", "public": True}
            id = create(e2b, templateID=alias)["sandboxID"]
            assert e2b.get(f"/sandboxes/{id}").json()["templateID"] == "interpreter"
            assert id in [item["sandboxID"] for item in e2b.get("/v2/sandboxes", params={"template": alias}).json()]
        assert api.post("/v1/sandboxes", json={"template": "code-interpreter-v1"}).json()["template"] == "interpreter"
        shown = {item["name"]: item["aliases"] for item in api.get("/v1/templates").json()["items"]}
        assert shown == {"base": [], "interpreter": ["code-interpreter-v1"]}
        harness.peer.templates = [*built, {**built[0], "name": "code-interpreter-v1"}]
        assert api.get("/v1/templates").status_code == 200  # else the server has not heard of it yet
        id = create(e2b, templateID="code-interpreter-v1")["sandboxID"]
        assert e2b.get(f"/sandboxes/{id}").json()["templateID"] == "code-interpreter-v1", "a real one goes before"
    finally:
        harness.peer.templates = before


def ranges(first: int, bits: int) -> st.SearchStrategy[_Range]:
    """Within 64 addresses, so that they often meet."""
    lengths = st.integers(bits - 6, bits)
    return st.builds(
        lambda at, length: ipaddress.ip_network((first + (at >> (bits - length) << (bits - length)), length)),
        st.integers(0, 63), lengths,
    )  # fmt: skip


NEAR = st.lists(st.one_of(ranges(0x08080800, 32), ranges(0x2A00 << 112, 128)), max_size=4)


@given(NEAR, NEAR)
def test_what_is_allowed_wins_over_what_is_denied(denied: list[_Range], allowed: list[_Range]) -> None:
    """Address by address."""
    body = Body({"denyOut": [str(one) for one in denied], "allowOut": [str(one) for one in allowed]})
    network = update(body)
    left = [] if network == "open" else [ipaddress.ip_network(text) for text in network.deny]  # type: ignore[union-attr]
    for address in (*ipaddress.ip_network("8.8.8.0/26"), *ipaddress.ip_network("2a00::/122")):
        is_denied, is_allowed, is_left = (
            any(address in one for one in some if one.version == address.version) for some in (denied, allowed, left)
        )
        assert is_left is (is_denied and not is_allowed)
