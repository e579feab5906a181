"""Sandboxes of the fake API: folders with a record."""

from __future__ import annotations

import asyncio
import shutil
import signal
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bellglass import errors
from bellglass.ids import new_sandbox_id
from bellglass.model import now
from tests.unit.fake_api.fake_state import State


class Sandboxes:
    def __init__(self, state: State) -> None:
        self._state = state
        self.routes = [
            Route("/v1/sandboxes", self.create, methods=["POST"]),
            Route("/v1/sandboxes", self.list, methods=["GET"]),
            Route("/v1/sandboxes/{id}", self.one, methods=["GET", "PATCH", "DELETE"]),
            Route("/v1/sandboxes/{id}/network", self.network, methods=["GET", "PUT"]),
        ]

    async def create(self, request: Request) -> Response:
        body = await request.json()
        self._state.bodies.append(body)
        key = request.headers.get("idempotency-key")
        if key in self._state.keys_seen:
            return JSONResponse(self._state.boxes[self._state.keys_seen[key]], 201)
        if body["template"] != "base":
            raise errors.NotFound(f"there is no template {body['template']!r}")
        self.judge(body.get("network", "deny"))
        for box in self._state.boxes.values():
            if body.get("name") and box["name"] == body["name"] and box["state"] == "running":
                if body.get("get_or_create"):
                    return JSONResponse(box)
                raise errors.Conflict("the name is taken")
        id = new_sandbox_id()
        (self._state.root / id).mkdir()
        self._state.boxes[id] = {
            "id": id,
            "state": "running",
            "termination_reason": None,
            "message": None,
            "template": "base",
            "template_digest": "0" * 64,
            "name": body.get("name"),
            "owner": body.get("owner"),
            "labels": body.get("labels", {}),
            "env": body.get("env", {}),
            "user": "user",
            "workdir": str(self._state.root / id),
            "cpus": body.get("cpus", 2.0),
            "memory_bytes": 4 << 30,
            "disk_bytes": 10 << 30,
            "inodes": 1,
            "pids": 512,
            "lifetime_s": 600.0,
            "idle_timeout_s": None,
            "expires_at": now(),
            "tier": "container",
            "runtime": "fake",
            "runtime_version": "0",
            "network": body.get("network", "deny"),
            "network_generation": 1,
            "node": "local",
            "generation": 1,
            "created_at": now(),
            "started_at": now(),
            "ended_at": None,
            "a_field_of_tomorrow": 1,
        }
        if key:
            self._state.keys_seen[key] = id
        await asyncio.sleep(self._state.create_takes_s)
        return JSONResponse(self._state.boxes[id], 201)

    def judge(self, network: Any) -> None:
        """Of the real one's judgement a single rule."""
        if network not in ("deny", "open") and "*.com" in network.get("allow", ()):
            raise errors.InvalidRequest("network.allow: '*.com' is too wide", details={"field": "network.allow.0.host"})

    async def network(self, request: Request) -> Response:
        box = self._state.box(request)
        if request.method == "PUT":
            body = await request.json()
            self._state.bodies.append(body)
            self.judge(body["network"])
            box |= {"network": body["network"], "network_generation": box["network_generation"] + 1}
        rule = {"host": "pip.test", "cidr": None, "ports": [443], "protocol": "tcp", "origin": "preset:pip"}
        shown = {"network": box["network"], "generation": box["network_generation"], "resolved": [rule]}
        return JSONResponse(shown)

    async def list(self, request: Request) -> Response:
        query = request.query_params
        wanted = [tuple(pair.split("=", 1)) for pair in query.getlist("label")]
        found = [
            box
            for box in self._state.boxes.values()
            if (query.get("state") == "all" or box["state"] == query.get("state", "running"))
            and query.get("owner") in (None, box["owner"])
            and all(box["labels"].get(key) == value for key, value in wanted)
        ]
        start = int(query.get("cursor", 0))
        end = start + self._state.page_size
        return JSONResponse({"items": found[start:end], "cursor": str(end) if end < len(found) else None})

    async def one(self, request: Request) -> Response:
        box = self._state.boxes.get(request.path_params["id"])
        if box is None:
            raise errors.NotFound("there is no such sandbox")
        if request.method == "PATCH":
            changes = await request.json()
            self._state.bodies.append(changes)
            box["labels"] = changes.get("labels", box["labels"])
        if request.method == "DELETE":
            for run in self._state.runs.values():
                if run.record["sandbox_id"] == box["id"] and not run.done:
                    run.kill(signal.SIGKILL)
            shutil.rmtree(self._state.root / box["id"], ignore_errors=True)
            del self._state.boxes[box["id"]]
            return Response(status_code=204)
        return JSONResponse(box)
