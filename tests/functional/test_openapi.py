"""schemathesis over every route of a real server with real sandboxes: what is documented holds, and nothing breaks it.

No answer is a fault of ours, each status is documented, each error has the one shape, each body fits its schema.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from bellglass.errors import BY_CODE
from bellglass.ids import new_ulid
from bellglass.server.app import make_fastapi
from bellglass.server.http.actions import ActionRoute
from bellglass.server.system.openapi import describe
from bellglass.testing.stack import Stack

ADMIN_ACTIONS = {
    route.described.action for route in make_fastapi().routes
    if isinstance(route, ActionRoute) and route.described.access == "admin"
}  # fmt: skip
SCHEMA = schemathesis.openapi.from_dict(describe(make_fastapi()))
TYPED_5XX = {"not_supported", "no_capacity", "node_unavailable", "agent_lost", "disk_full"}
EXAMPLES = 25
pytestmark = pytest.mark.root


@schemathesis.serializer("application/x-tar")
def tar(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """Random bytes, which are no archive."""
    return value if isinstance(value, bytes) else str(value).encode()


class Target:
    """A project of its own with a sandbox that most requests are about, and an execution that goes on in it."""

    def __init__(self, stack: Stack) -> None:
        self.url = stack.api_url
        self.key, self.admin_key = stack.create_key(), stack.admin_key
        self.client = httpx2.Client(
            base_url=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=60, trust_env=False,
            limits=httpx2.Limits(max_keepalive_connections=0),
        )  # fmt: skip
        self.sandbox_id = self.execution_id = ""

    def renew(self) -> None:
        """Random requests may have ended it."""
        if self.sandbox_id and self.client.get(f"/v1/sandboxes/{self.sandbox_id}").json().get("state") == "running":
            return
        made = self.client.post(
            "/v1/sandboxes", json={"memory": "256MiB", "disk": "256MiB", "cpus": 1, "lifetime": "1h"}
        )
        assert made.status_code == 201, made.text
        self.sandbox_id = made.json()["id"]
        # Its folder of logs is there before the first test, whose leak check would take it for one.
        url = f"/v1/sandboxes/{self.sandbox_id}/executions"
        assert self.client.post(url, json={"command": ["head", "-c", "3000000", "/dev/zero"]}).status_code == 200
        self.start()

    def start(self) -> None:
        self.execution_id = new_ulid()
        started = self.client.post(
            f"/v1/sandboxes/{self.sandbox_id}/executions",
            json={"command": ["cat"], "stdin_open": True, "detach": True, "id": self.execution_id},
        )
        assert started.status_code == 201, started.text

    def clear(self, *, all_of_them: bool = False) -> None:
        admin = {"authorization": f"Bearer {self.admin_key}"}
        for pool in self.client.get("/v1/pools", headers=admin).json()["items"]:
            assert self.client.delete(f"/v1/pools/{pool['template']}", headers=admin).status_code == 204
        for box in self.client.get("/v1/sandboxes", params={"limit": 1000}).json()["items"]:
            if all_of_them or box["id"] != self.sandbox_id:
                assert self.client.delete(f"/v1/sandboxes/{box['id']}").status_code == 204
        if not all_of_them:
            # One with an address of its own has a listener.
            ports = f"/v1/sandboxes/{self.sandbox_id}/ports"
            for published in self.client.get(ports).json().get("items", ()):  # none of one that has ended
                assert self.client.delete(f"{ports}/{published['port']}").status_code == 204


@pytest.fixture(scope="module")
def target(stack: Stack) -> Iterator[Target]:
    target = Target(stack)
    target.renew()
    yield target
    target.clear(all_of_them=True)
    target.client.close()


@pytest.fixture
def clean_target(target: Target) -> Iterator[Target]:
    yield target
    target.clear()


def aim(case: Any, target: Target) -> None:
    """Most ids become real ones; what would only take long is bounded."""
    action = case.operation.definition.raw["operationId"]
    ids = case.path_parameters or {}
    chosen = zlib.crc32(repr(sorted(ids.items())).encode()) % 4 != 0
    if "sandbox_id" in ids and chosen and action not in ("sandbox.delete", "sandbox.update"):
        ids["sandbox_id"] = target.sandbox_id
        if "execution_id" in ids:
            ids["execution_id"] = target.execution_id
        if "context_id" in ids:
            ids["context_id"] = "python"
    body = case.body if isinstance(case.body, dict) else {}
    if action == "exec.create" and isinstance(body.get("command"), (str, list)):
        body["timeout"] = body["timeout"] if isinstance(body.get("timeout"), (bool, list, dict)) else 2
        body["detach"] = False
    if action == "sandbox.create":
        body["lifetime"] = 60 if isinstance(body.get("lifetime", 1), (int, float)) else body["lifetime"]
    if "template" in ids and chosen:
        ids["template"] = "base"
    if action == "pool.set" and isinstance(body.get("size"), int) and 0 <= body["size"] <= 1000:
        body["size"] = 0  # machines take long
    if case.query and "follow" in case.query:
        case.query["follow"] = False  # it would go on for ever
    if action == "file.archive_read" and case.query and str(case.query.get("path", "")).startswith("/"):
        case.query["path"] = "."


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much,
                           HealthCheck.data_too_large],
)  # fmt: skip
def test_route(case: Any, clean_target: Target) -> None:
    target = clean_target
    aim(case, target)
    described = case.operation.definition.raw
    key = target.admin_key if described["operationId"] in ADMIN_ACTIONS else target.key
    answer = case.call(base_url=target.url, headers={"authorization": f"Bearer {key}"})
    checks = [status_code_conformance]
    if answer.status_code < 400 and described["operationId"] not in ("exec.create", "exec.output"):
        checks += [content_type_conformance, response_schema_conformance]
    case.validate_response(answer, checks=checks)
    assert answer.headers["x-request-id"]
    if answer.status_code >= 400 and case.method.upper() != "HEAD":
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "hint", "retryable", "details", "request_id"}
        assert error["code"] in BY_CODE, error
        assert answer.status_code < 500 or error["code"] in TYPED_5XX, error


def test_the_target_lives(target: Target) -> None:
    """Else all of the above would have been about 404s."""
    assert target.client.get(f"/v1/sandboxes/{target.sandbox_id}").json()["state"] == "running"


def test_keys_are_asked_for_by_every_route_but_the_public_ones(stack: Stack) -> None:
    document = describe(make_fastapi())
    public = set()
    with httpx2.Client(base_url=stack.api_url, trust_env=False) as client:
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                url = path.format(
                    sandbox_id="x",
                    execution_id="x",
                    context_id="x",
                    key_id="x",
                    template="x",
                    quarantined_id="x",
                    port=80,
                )
                status = client.request(method.upper(), url).status_code
                if "security" in operation:
                    assert status == 401, (method, path)
                else:
                    # A signed URL is its own key; here it lacks its signature.
                    assert status == (422 if path.endswith("/signed") else 200), (method, path)
                    public.add(operation["operationId"])
    signed = {"file.read_signed", "file.head_signed", "file.write_signed"}
    assert public == {"health.get", "openapi.get"} | signed


UNTRIED = ("exec.resize", "key.create", "limits.put", "file.move", "quarantine.adopt", "context.create", "context.run")
"""Their examples name what is not there."""


def test_examples_of_the_document_work(clean_target: Target) -> None:
    """What a reader copies from it."""
    target = clean_target
    target.start()
    document = describe(make_fastapi())
    tried = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is None or operation["operationId"] in UNTRIED:
                continue
            assert "example" in content, f"{method} {path} has no example"
            url = path.format(
                sandbox_id=target.sandbox_id, execution_id=target.execution_id, template="base", port=8000
            )
            key = target.admin_key if operation["operationId"] in ADMIN_ACTIONS else target.key
            answer = target.client.request(
                method.upper(), url, json=content["example"], headers={"authorization": f"Bearer {key}"}
            )
            assert answer.status_code < 300, (operation["operationId"], answer.text)
            tried += 1
    assert tried >= 5
