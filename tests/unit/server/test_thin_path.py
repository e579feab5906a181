"""Create, exec, delete: the way through all layers."""

from __future__ import annotations

import httpx2
from server_harness import Harness, error_of


def test_create_exec_delete(harness: Harness, api: httpx2.Client) -> None:
    made = api.post("/v1/sandboxes", json={"env": {"A": "1"}, "cpus": 1})
    assert made.status_code == 201, made.text
    box = made.json()
    assert box["state"] == "running"
    assert (box["memory_bytes"], box["pids"], box["tier"], box["runtime"]) == (4 * 2**30, 512, "container", "runc")
    url = f"/v1/sandboxes/{box['id']}"
    assert api.get(url).json() == box

    done = api.post(url + "/executions", json={"command": ["true"], "cwd": "job", "env": {"B": "2"}})
    assert done.status_code == 200, done.text
    assert done.json()["stdout"] == "42\n"
    spec = harness.peer.params("execution.create")["spec"]
    assert spec["env"] == {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "A": "1", "B": "2"}
    assert (spec["cwd"], spec["user"], spec["timeout_s"]) == ("/home/user/job", "user", 300.0)

    assert api.delete(url).status_code == 204
    error_of(api.get(url), 404, "not_found")
    assert api.delete(url).status_code == 204
    error_of(api.post(url + "/executions", json={"command": ["true"]}), 404, "not_found")


def test_openapi(api: httpx2.Client) -> None:
    document = api.get("/v1/openapi.json").json()
    assert document["paths"]["/v1/sandboxes"]["post"]["operationId"] == "sandbox.create"
