"""Routes of the fake API's executions."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bellglass import errors
from bellglass.model import now
from bellglass.wire.output import FRAMES, OutputType
from tests.unit.fake_api.fake_processes import Process
from tests.unit.fake_api.fake_state import State


class Executions:
    def __init__(self, state: State) -> None:
        self._state = state
        self._tasks: set[asyncio.Task[None]] = set()
        self.routes = [
            Route("/v1/sandboxes/{id}/executions", self.execute, methods=["POST"]),
            Route("/v1/sandboxes/{id}/executions", self.executions, methods=["GET"]),
            Route("/v1/sandboxes/{id}/executions/{eid}", self.execution),
            Route("/v1/sandboxes/{id}/executions/{eid}/output", self.output),
            Route("/v1/sandboxes/{id}/executions/{eid}/stdin", self.stdin, methods=["POST"]),
            Route("/v1/sandboxes/{id}/executions/{eid}/signal", self.signal, methods=["POST"]),
        ]

    async def execute(self, request: Request) -> Response:
        box = self._state.box(request)
        body = await request.json()
        self._state.bodies.append(body)
        run = self._state.runs.get(body["id"])
        if run is None:
            if not body["command"]:
                raise errors.InvalidCommand("command: it is empty")
            run = await self._start(box, body)
        elif run.body != body:
            raise errors.Conflict("the id is taken")
        if body.get("detach"):
            return JSONResponse(run.record, 201)
        return StreamingResponse(self._events(run, 0, follow=True), media_type=FRAMES)

    async def _start(self, box: dict[str, Any], body: dict[str, Any]) -> Process:
        command = body["command"]
        record = {
            "id": body["id"],
            "sandbox_id": box["id"],
            "state": "running",
            "command": command,
            "cwd": box["workdir"],
            "user": "user",
            "timeout_s": body.get("timeout"),
            "detached": bool(body.get("detach")),
            "started_at": now(),
        }
        run = self._state.runs[body["id"]] = Process(record, body)
        self._state.started += 1
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        stdin = body.get("stdin")
        has_input = stdin is not None or body.get("stdin_open")
        try:
            run.process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=os.path.join(box["workdir"], body.get("cwd", "")),
                env={"PATH": os.environ["PATH"], **box["env"], **body.get("env", {})},
                stdin=asyncio.subprocess.PIPE if has_input else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            await run.add(OutputType.STDERR, f"bellglass: {argv[0]}: not found\n".encode())
            run.record.update(state="exited", exit_code=127, duration_s=0.0)
            run.done = True
            return run
        if stdin is not None and run.process.stdin is not None:
            run.process.stdin.write(stdin.encode() if isinstance(stdin, str) else base64.b64decode(stdin["b64"]))
            run.process.stdin.close()
        task = asyncio.create_task(run.watch())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    def _run_of(self, request: Request) -> Process:
        self._state.box(request)
        run = self._state.runs.get(request.path_params["eid"])
        if run is None or self._state.forget_executions:
            raise errors.NotFound("there is no such execution")
        return run

    async def executions(self, request: Request) -> Response:
        box = self._state.box(request)
        items = [run.record for run in self._state.runs.values() if run.record["sandbox_id"] == box["id"]]
        return JSONResponse({"items": items[::-1], "cursor": None})

    async def execution(self, request: Request) -> Response:
        return JSONResponse(self._run_of(request).record)

    async def output(self, request: Request) -> Response:
        run = self._run_of(request)
        offset = int(request.query_params.get("offset", 0))
        follow = request.query_params.get("follow") == "true"
        return StreamingResponse(self._events(run, offset, follow=follow), media_type=FRAMES)

    async def stdin(self, request: Request) -> Response:
        run = self._run_of(request)
        pipe = run.process.stdin if run.process else None
        if run.done or pipe is None or pipe.is_closing():
            details = {"received": run.input_bytes, "ended": True} if pipe is not None else None
            raise errors.Conflict("its standard input is not open", details=details)
        data = await request.body()
        if (offset := request.query_params.get("offset")) is not None and int(offset) != run.input_bytes:
            details = {"received": run.input_bytes, "ended": False}
            raise errors.Conflict("its standard input stands elsewhere", details=details)
        run.input_bytes += len(data)
        try:
            pipe.write(data)
            await pipe.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise errors.Conflict("its standard input is closed") from error
        if request.query_params.get("eof") == "true":
            pipe.close()
        return JSONResponse({"written": len(data), "offset": run.input_bytes})

    async def signal(self, request: Request) -> Response:
        body = await request.json()
        named = body["signal"]
        self._run_of(request).kill(signal.Signals[named] if isinstance(named, str) else named)
        return JSONResponse({})

    def _events(self, run: Process, offset: int, *, follow: bool) -> AsyncIterator[bytes]:
        return run.events(offset, follow=follow, budget=self._state.cuts.pop(0) if self._state.cuts else None)

    async def end(self) -> None:
        for run in self._state.runs.values():
            run.kill(signal.SIGKILL)
        if self._tasks:
            await asyncio.wait(self._tasks)
