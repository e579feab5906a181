"""Every value of a create: bounds, grammars, defaults. Each refusal names the field, and nothing is half-made."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_harness import Harness, error_of

from bellglass.egress.floor import Floor
from bellglass.errors import InvalidRequest, NotSupported
from bellglass.model import CreateSandbox, InputFile, NetworkPolicy
from bellglass.server.cluster.base import NodeInfo
from bellglass.server.sandboxes.validate import settle

NODE = {
    "node_id": "local",
    "version": "0.1.0",
    "tiers": [
        {"tier": "process", "runtime": "bubblewrap", "version": "1", "usable": True},
        {"tier": "container", "runtime": "runc", "version": "1", "usable": True},
        {"tier": "gvisor", "runtime": "runsc", "version": None, "usable": False, "reason": "runsc is not installed",
         "hint": "install runsc"},
        {"tier": "microvm-emulated", "runtime": "qemu", "version": "8", "usable": True},
    ],
    "templates": [
        {"name": name, "digest": "ab" * 32, "env": {}, "user": "user", "workdir": "/home/user", "size_bytes": 1,
         "built_at": "x"} for name in ("base", "python-3")
    ],
}  # fmt: skip
INFO = NodeInfo.from_json(NODE)
GOOD: dict[str, Any] = {
    "template": "base", "name": "a-1", "owner": "Jörg", "labels": {"team": "red"}, "env": {"A-B": "x\ny"},
    "cpus": 0.1, "memory": "64MiB", "disk": 64 * 2**20, "pids": 16, "lifetime": 1, "idle_timeout": "30d",
    "user": "root", "workdir": "/", "network": "deny", "isolation": "container",
}  # fmt: skip


def settled(**values: Any) -> Any:
    return settle(CreateSandbox(**values), INFO, 8.0, {}, Floor()).spec


def test_the_bounds_themselves_are_allowed() -> None:
    spec = settled(**GOOD)
    assert (spec.cpus, spec.memory_bytes, spec.disk_bytes, spec.pids) == (0.1, 2**26, 2**26, 16)
    assert (spec.lifetime_s, spec.idle_timeout_s) == (1.0, 30 * 86400.0)
    assert settled(cpus=8, pids=32768, lifetime="30d").cpus == 8.0


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *[("cpus", value) for value in (0, -1, 0.05, 8.1, 1e9)],
        *[("memory", value) for value in (0, -1, "0", "63MiB", "1PiB1", "abc", "", 1.5, True, "2PiB", 2**60)],
        *[("disk", value) for value in (0, -1, "1B", "x", "nan", "-5GiB")],
        *[("pids", value) for value in (0, -1, 15, 32769, 10**12)],
        *[("lifetime", value) for value in (0, -1, 1e18, "0", "0.5", 0.5, "31d", "x", "", "1y", True)],
        *[("idle_timeout", value) for value in (0, -1, "0s", "31d", False)],
        *[("name", value) for value in ("", "-a", "a-", "a b", "a\n", "ä", "a" * 64, "a/b", "..", "a\0")],
        *[("owner", value) for value in ("", "a\n", "a\0b", "x" * 257, "\x1b[0m")],
        *[("labels", {key: "x"}) for key in ("", " a", "a=b", "a\n", "a" * 129, "bellglass/x", "BellGlass.y")],
        *[("labels", {"a": value}) for value in ("x" * 32768, "\0")],
        ("labels", {f"k{i}": "" for i in range(65)}),
        *[("env", {key: "x"}) for key in ("", "A=B", "A\0", "=")],
        ("env", {"A": "x\0"}),
        ("env", {"A": "x" * 300_000}),
        *[("user", value) for value in ("", "a b", "Root", "-x", "a\n", "4294967296", "a" * 40, "../x", "-1")],
        *[("workdir", value) for value in ("", "relative", "/a\0", "/" + "a" * 4096)],
        *[("inputs", {path: InputFile(text="x")}) for path in ("", "/abs", "../x", "a/../b", "a//b", "a\0", ".", "a/")],
        ("inputs", {"a": InputFile()}),
        ("inputs", {"a": InputFile(text="x", b64="eA==")}),
        ("inputs", {"a": InputFile(b64="not base64!")}),
        ("inputs", {"a": InputFile(text="x"), "a/b": InputFile(text="x")}),
        ("inputs", {"a": InputFile(text="x" * (8 * 2**20 + 1))}),
        *[("template", value) for value in ("", "bsae", "../base", "base\0", "python-3 ")],
        *[("isolation", value) for value in ("", "docker", "Container", "container\n")],
        *[("at_least", value) for value in ("", "vm", "microvm-emulated")],
    ],
)  # fmt: skip
def test_refused(field: str, bad: Any) -> None:
    assert settled(**{**GOOD, "inputs": {"d/a": InputFile(text="x")}})
    with pytest.raises(InvalidRequest) as refusal:
        settled(**{**GOOD, "isolation": None, field: bad})
    assert refusal.value.details["field"].startswith(field)
    assert field in refusal.value.message


def test_hints() -> None:
    for value, hint in ((dict(template="bsae"), "base"), (dict(isolation="contaner"), "container")):
        with pytest.raises(InvalidRequest) as refusal:
            settled(**value)
        assert hint in str(refusal.value.hint)
    with pytest.raises(InvalidRequest) as refusal:
        settled(template="nothing-like-it")
    assert refusal.value.message == "template: 'nothing-like-it' is unknown"
    assert "base, python-3" in str(refusal.value.hint), "the list stands in one of the two"
    with pytest.raises(InvalidRequest) as refusal:
        settled(template="interpreter")
    assert refusal.value.message == "template: 'interpreter' is not built on this node"
    assert "`bellglass templates build interpreter`" in str(refusal.value.hint)
    assert "base, python-3" in str(refusal.value.hint)


def test_isolation() -> None:
    assert settled().tier == "container", "the strongest that is usable; the emulated one is outside the order"
    assert settled(isolation="process").tier == "process"
    assert settled(isolation="microvm-emulated").tier == "microvm-emulated"
    assert settled(at_least="process").tier == "container"
    for wish in (dict(isolation="gvisor"), dict(at_least="gvisor"), dict(at_least="microvm")):
        with pytest.raises(NotSupported) as refusal:
            settled(**wish)
        assert "container" in str(refusal.value.hint)
    with pytest.raises(NotSupported) as refusal:
        settled(isolation="gvisor")
    assert "runsc is not installed" in refusal.value.message
    assert "install runsc" in str(refusal.value.hint)
    with pytest.raises(InvalidRequest):
        settled(isolation="process", at_least="process")


def test_a_node_without_networks_has_deny_alone() -> None:
    assert settled(network="deny").network == "deny"
    for value in ("open", NetworkPolicy(allow=["api.example.com:443"])):
        with pytest.raises(NotSupported):
            settled(network=value)
    with pytest.raises(InvalidRequest):
        settled(network="denied")


def test_nothing_is_half_made(harness: Harness, api: httpx2.Client) -> None:
    before = harness.peer.count("sandbox.create")
    for body in ({"template": "nope"}, {"cpus": -1}, {"network": "wide"}, {"isolation": "gvisor"}):
        answer = api.post("/v1/sandboxes", json=body)
        assert answer.status_code in (422, 501)
        error_of(answer, answer.status_code)
    assert harness.peer.count("sandbox.create") == before
    assert api.get("/v1/sandboxes", params={"state": "all"}).json()["items"] == []


def test_a_template_built_a_moment_ago_is_found(harness: Harness, api: httpx2.Client) -> None:
    assert api.post("/v1/sandboxes", json={}).status_code == 201
    harness.peer.templates.append({**harness.peer.templates[0], "name": "fresh"})
    assert api.post("/v1/sandboxes", json={"template": "fresh"}).status_code == 201
    assert [item["name"] for item in api.get("/v1/templates").json()["items"]] == ["base", "fresh"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([*CreateSandbox.__dataclass_fields__, "timeout", "x"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(FIELDS, JSON_VALUES, min_size=1, max_size=3))
def test_any_json_is_a_sandbox_or_a_typed_error(api: httpx2.Client, body: dict[str, Any]) -> None:
    import json

    raw = json.dumps(body).encode()  # NaN and Infinity as Python writes them
    answer = api.post("/v1/sandboxes", content=raw, headers={"content-type": "application/json"})
    if answer.status_code in (200, 201):
        assert answer.json()["state"] == "running"
    else:
        assert answer.status_code in (409, 422, 501), answer.text
        error_of(answer, answer.status_code)
