"""A server that plays the API on this machine: sandboxes are scratch folders, executions are real processes in them.

It isolates nothing. It exists to misbehave on order: `cuts` breaks the next output streams after so many bytes,
`refuse` answers the next requests with an error, `drop_answers` does the work and then hangs up.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bellglass import errors
from bellglass.ids import new_sandbox_id
from bellglass.model import now
from bellglass.units import parse_duration
from bellglass.wire.output import FRAMES, OutputEvent, OutputType, encode_event

KEY = "bg_" + "k" * 40


class Process:
    """One execution: its record and its log."""

    def __init__(self, record: dict[str, Any], body: dict[str, Any]) -> None:
        self.record = record
        self.body = body
        self.log: list[tuple[OutputType, int, bytes]] = []
        self.size = 0
        self.lost_bytes = 0
        self.changed = asyncio.Condition()
        self.process: asyncio.subprocess.Process | None = None
        self.input_bytes = 0
        self.done = False

    async def add(self, type: OutputType, data: bytes) -> None:
        async with self.changed:
            self.log.append((type, self.size, data))
            self.size += len(data)
            self.changed.notify_all()


class FakeApi:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.boxes: dict[str, dict[str, Any]] = {}
        self.keys_seen: dict[str, str] = {}
        self.runs: dict[str, Process] = {}
        self.started = 0
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.cuts: list[int] = []
        self.refuse: list[errors.BellglassError] = []
        self.drop_answers = 0
        self.create_takes_s = 0.0
        self.hang_up: Callable[[], None] = lambda: None
        self.forget_executions = False
        self.corrupt_uploads = False
        self.archive: bytes | None = None
        self.page_size = 2
        self.tasks: set[asyncio.Task[None]] = set()
        self.app = Starlette(
            routes=[
                Route("/v1/sandboxes", self.create, methods=["POST"]),
                Route("/v1/sandboxes", self.list, methods=["GET"]),
                Route("/v1/sandboxes/{id}", self.one, methods=["GET", "PATCH", "DELETE"]),
                Route("/v1/sandboxes/{id}/network", self.network, methods=["GET", "PUT"]),
                Route("/v1/sandboxes/{id}/executions", self.execute, methods=["POST"]),
                Route("/v1/sandboxes/{id}/executions", self.executions, methods=["GET"]),
                Route("/v1/sandboxes/{id}/executions/{eid}", self.execution),
                Route("/v1/sandboxes/{id}/executions/{eid}/output", self.output),
                Route("/v1/sandboxes/{id}/executions/{eid}/stdin", self.stdin, methods=["POST"]),
                Route("/v1/sandboxes/{id}/executions/{eid}/signal", self.signal, methods=["POST"]),
                Route("/v1/sandboxes/{id}/files", self.files, methods=["GET", "PUT", "DELETE"]),
                Route("/v1/sandboxes/{id}/files/archive", self.archives, methods=["GET", "PUT"]),
                Route("/v1/sandboxes/{id}/files/{what}", self.file_call, methods=["GET", "POST"]),
                Route("/v1/keys", self.keys, methods=["GET", "POST"]),
                Route("/v1/keys/{id}", self.keys, methods=["DELETE"]),
                Route("/v1/templates", self.templates),
            ],
            exception_handlers={errors.BellglassError: self.refusal},  # type: ignore[dict-item]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.requests.append((scope["method"], scope["path"]))
        headers = dict(scope["headers"])
        error: errors.BellglassError | None = None
        if headers.get(b"authorization") not in (f"Bearer {KEY}".encode(), b"Bearer admin"):
            error = errors.Unauthorized("this key is not known")
        elif self.refuse:
            error = self.refuse.pop(0)
        if error is not None:
            answer = JSONResponse(error.to_dict(), error.status, headers={"x-request-id": "rqtest"})
            await answer(scope, receive, send)
            return
        if self.drop_answers:
            self.drop_answers -= 1

            async def swallow(message: Any) -> None:
                pass

            await self.app(scope, receive, swallow)
            self.hang_up()
            return
        await self.app(scope, receive, send)

    async def refusal(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, errors.BellglassError)
        return JSONResponse(error.to_dict(), error.status)

    def box(self, request: Request) -> dict[str, Any]:
        box = self.boxes.get(request.path_params["id"])
        if box is None:
            raise errors.NotFound(f"there is no sandbox {request.path_params['id']!r}")
        if box["state"] == "ended":
            raise errors.SandboxGone(
                "the sandbox has ended", details={"reason": box["termination_reason"], "ended_at": box["ended_at"]}
            )
        return box

    async def create(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        key = request.headers.get("idempotency-key")
        if key in self.keys_seen:
            return JSONResponse(self.boxes[self.keys_seen[key]], 201)
        if body["template"] != "base":
            raise errors.NotFound(f"there is no template {body['template']!r}")
        self.judge(body.get("network", "deny"))
        for box in self.boxes.values():
            if body.get("name") and box["name"] == body["name"] and box["state"] == "running":
                if body.get("get_or_create"):
                    return JSONResponse(box)
                raise errors.Conflict("the name is taken")
        id = new_sandbox_id()
        (self.root / id).mkdir()
        self.boxes[id] = {
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
            "workdir": str(self.root / id),
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
            self.keys_seen[key] = id
        await asyncio.sleep(self.create_takes_s)
        return JSONResponse(self.boxes[id], 201)

    def judge(self, network: Any) -> None:
        """Of the real one's judgement a single rule."""
        if network not in ("deny", "open") and "*.com" in network["allow"]:
            raise errors.InvalidRequest("network.allow: '*.com' is too wide", details={"field": "network.allow.0.host"})

    async def network(self, request: Request) -> Response:
        box = self.box(request)
        if request.method == "PUT":
            body = await request.json()
            self.bodies.append(body)
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
            for box in self.boxes.values()
            if (query.get("state") == "all" or box["state"] == query.get("state", "running"))
            and query.get("owner") in (None, box["owner"])
            and all(box["labels"].get(key) == value for key, value in wanted)
        ]
        start = int(query.get("cursor", 0))
        end = start + self.page_size
        return JSONResponse({"items": found[start:end], "cursor": str(end) if end < len(found) else None})

    async def one(self, request: Request) -> Response:
        box = self.boxes.get(request.path_params["id"])
        if box is None:
            raise errors.NotFound("there is no such sandbox")
        if request.method == "PATCH":
            changes = await request.json()
            self.bodies.append(changes)
            box["labels"] = changes.get("labels", box["labels"])
        if request.method == "DELETE":
            for run in self.runs.values():
                if run.record["sandbox_id"] == box["id"] and not run.done:
                    self._kill(run, signal.SIGKILL)
            shutil.rmtree(self.root / box["id"], ignore_errors=True)
            del self.boxes[box["id"]]
            return Response(status_code=204)
        return JSONResponse(box)

    # Executions

    async def execute(self, request: Request) -> Response:
        box = self.box(request)
        body = await request.json()
        self.bodies.append(body)
        run = self.runs.get(body["id"])
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
        run = self.runs[body["id"]] = Process(record, body)
        self.started += 1
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
        task = asyncio.create_task(self._watch(run))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return run

    async def _watch(self, run: Process) -> None:
        process = run.process
        assert process is not None

        async def pump(stream: asyncio.StreamReader | None, type: OutputType) -> None:
            assert stream is not None
            while data := await stream.read(65536):
                await run.add(type, data)

        begun = time.monotonic()
        limit = run.body.get("timeout")
        try:
            async with asyncio.timeout(None if limit is None else parse_duration(limit, "timeout")):
                await asyncio.gather(pump(process.stdout, OutputType.STDOUT), pump(process.stderr, OutputType.STDERR))
                code = await process.wait()
        except TimeoutError:
            self._kill(run, signal.SIGKILL)
            code = await process.wait()
            run.record["timed_out"] = True
        killed = code < 0
        run.record.update(
            state="exited",
            exit_code=128 - code if killed else code,
            signal=signal.Signals(-code).name if killed else None,
            duration_s=time.monotonic() - begun,
            ended_at=now(),
        )
        async with run.changed:
            run.done = True
            run.changed.notify_all()

    def _kill(self, run: Process, number: int) -> None:
        if run.process is not None and run.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.process.pid, number)

    async def _events(self, run: Process, offset: int, *, follow: bool) -> AsyncIterator[bytes]:
        budget = self.cuts.pop(0) if self.cuts else None
        yield encode_event(OutputEvent(OutputType.STARTED, value=run.record))
        if offset < run.lost_bytes:
            value = {"offset": offset, "bytes": run.lost_bytes - offset}
            yield encode_event(OutputEvent(OutputType.SKIPPED, value=value))
            offset = run.lost_bytes
        while True:
            for type, start, data in list(run.log):
                if start + len(data) <= offset:
                    continue
                data = data[max(offset - start, 0) :]
                if budget is not None and len(data) >= budget:
                    frame = encode_event(OutputEvent(type, offset, data[:budget]))
                    yield frame
                    raise ConnectionAbortedError
                if budget is not None:
                    budget -= len(data)
                yield encode_event(OutputEvent(type, offset, data))
                offset += len(data)
            async with run.changed:
                if offset >= run.size:
                    if run.done or not follow:
                        break
                    await run.changed.wait()
        if run.done:
            yield encode_event(OutputEvent(OutputType.EXIT, value=run.record))

    def run_of(self, request: Request) -> Process:
        self.box(request)
        run = self.runs.get(request.path_params["eid"])
        if run is None or self.forget_executions:
            raise errors.NotFound("there is no such execution")
        return run

    async def executions(self, request: Request) -> Response:
        box = self.box(request)
        items = [run.record for run in self.runs.values() if run.record["sandbox_id"] == box["id"]]
        return JSONResponse({"items": items[::-1], "cursor": None})

    async def execution(self, request: Request) -> Response:
        return JSONResponse(self.run_of(request).record)

    async def output(self, request: Request) -> Response:
        run = self.run_of(request)
        offset = int(request.query_params.get("offset", 0))
        follow = request.query_params.get("follow") == "true"
        return StreamingResponse(self._events(run, offset, follow=follow), media_type=FRAMES)

    async def stdin(self, request: Request) -> Response:
        run = self.run_of(request)
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
        self._kill(self.run_of(request), signal.Signals[named] if isinstance(named, str) else named)
        return JSONResponse({})

    async def end(self) -> None:
        for run in self.runs.values():
            self._kill(run, signal.SIGKILL)
        if self.tasks:
            await asyncio.wait(self.tasks)

    # Files

    def place(self, request: Request, path: str | None = None) -> Path:
        box = self.box(request)
        return Path(box["workdir"]) / (path or request.query_params["path"])

    def info(self, path: Path, digest: str | None = None) -> dict[str, Any]:
        try:
            status = path.lstat()
        except FileNotFoundError as error:
            raise errors.FileMissing(f"{path}: there is no such file") from error
        return {
            "path": str(path),
            "name": path.name,
            "type": "dir" if path.is_dir() else "file",
            "size": status.st_size,
            "mode": f"{status.st_mode & 0o7777:04o}",
            "uid": status.st_uid,
            "gid": status.st_gid,
            "user": "user",
            "group": "user",
            "mtime": now(),
            "allocated_bytes": 0,
            "target": None,
            "sha256": digest,
        }

    async def files(self, request: Request) -> Response:
        place = self.place(request)
        query = request.query_params
        if request.method == "DELETE":
            self.info(place)
            shutil.rmtree(place) if place.is_dir() else place.unlink()
            return Response(status_code=204)
        if request.method == "GET":
            if place.is_dir():
                raise errors.FileTypeMismatch(f"{place} is a folder")
            info = self.info(place)
            data = place.read_bytes()
            headers = {"x-bellglass-file-info": json.dumps(info)}
            if wanted := request.headers.get("range"):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                if int(first) >= len(data):
                    return JSONResponse({"error": {"code": "range_not_satisfiable", "message": "no"}}, 416)
                data = data[int(first) : int(last) + 1 if last else None]
                return Response(data, 206, headers=headers, media_type="application/octet-stream")
            return Response(data, headers=headers, media_type="application/octet-stream")
        if query.get("parents") == "true":
            place.parent.mkdir(parents=True, exist_ok=True)
        if query.get("exclusive") == "true" and place.exists():
            raise errors.FileExists(f"{place} is there")
        digest = hashlib.sha256()
        fresh = query.get("mode") != "in_place" or not place.exists()
        with open(place, "wb" if fresh else "r+b") as file:
            file.seek(int(query.get("offset", 0)))
            async for chunk in request.stream():
                digest.update(chunk)
                file.write(chunk)
        if permissions := query.get("permissions"):
            place.chmod(int(permissions, 8))
        shown = "f" * 64 if self.corrupt_uploads else digest.hexdigest()
        return JSONResponse(self.info(place, shown), 201)

    async def archives(self, request: Request) -> Response:
        import io
        import tarfile

        place = self.place(request)
        if request.method == "GET":
            if self.archive is not None:
                return Response(self.archive, media_type="application/x-tar")
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for child in sorted(place.iterdir()):
                    archive.add(child, child.name)
            return Response(buffer.getvalue(), media_type="application/x-tar")
        place.mkdir(parents=True, exist_ok=True)
        body = await request.body()
        with tarfile.open(fileobj=io.BytesIO(body)) as archive:
            names = archive.getnames()
            archive.extractall(place)
        return JSONResponse({"entries": len(names), "bytes": len(body)})

    async def file_call(self, request: Request) -> Response:
        what = request.path_params["what"]
        if what == "stat":
            return JSONResponse(self.info(self.place(request)))
        if what == "list":
            recursive = request.query_params.get("recursive") == "true"
            place = self.place(request)
            found = sorted(place.rglob("*") if recursive else place.iterdir())
            limit = int(request.query_params.get("limit", 10_000))
            items = [self.info(path) for path in found[:limit]]
            return JSONResponse({"items": items, "truncated": len(found) > limit})
        body = await request.json()
        self.bodies.append(body)
        if what == "mkdir":
            self.place(request, body["path"]).mkdir(parents=body["parents"], exist_ok=body["exist_ok"])
        else:
            destination = self.place(request, body["destination"])
            if destination.exists() and not body["overwrite"]:
                raise errors.FileExists(f"{destination} is there")
            self.place(request, body["source"]).rename(destination)
        return JSONResponse({})

    async def keys(self, request: Request) -> Response:
        key = {
            "id": "ky" + "a" * 16,
            "project_id": "pj" + "a" * 16,
            "project_name": "one",
            "label": None,
            "created_at": now(),
            "last_used_at": None,
            "revoked_at": None,
            "secret": None,
        }
        if request.method == "DELETE":
            return Response(status_code=204)
        if request.method == "GET":
            return JSONResponse({"items": [key], "cursor": None})
        if request.headers["authorization"] != "Bearer admin":
            raise errors.Forbidden("that needs the admin key")
        body = await request.json()
        return JSONResponse({**key, "project_name": body["project"], "secret": KEY}, 201)

    async def templates(self, request: Request) -> Response:
        template = {
            "name": "base",
            "digest": "0" * 64,
            "env": {},
            "user": "user",
            "workdir": "/home/user",
            "size_bytes": 300 << 20,
            "built_at": now(),
        }
        return JSONResponse({"items": [template]})


class Server:
    """Serves the app from a loop in a thread, on one port that it keeps when stopped and started again.

    The loop, and with it the executions, live on while the server is stopped: that is a server's restart."""

    def __init__(self, **options: Any) -> None:
        self.app: Any = None
        self._options = options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    def play(self, app: FakeApi) -> None:
        """Serve this one from now on; the processes of the one before end."""
        if self.app is not None:
            asyncio.run_coroutine_threadsafe(self.app.end(), self._loop).result(10)
        app.hang_up = self._hang_up
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> None:
        config = uvicorn.Config(
            self,
            host="127.0.0.1",
            port=self.port,
            log_level="critical",
            lifespan="off",
            timeout_keep_alive=75,
            **self._options,
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.ensure_future(self._server.serve())
        while not self._server.started:
            assert not self._serving.done()
            await asyncio.sleep(0.002)

    def stop(self) -> None:
        """Hang up on everybody."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    async def _stop(self) -> None:
        self._server.should_exit = True
        for listener in self._server.servers:  # first: whoever is hung up on comes back at once
            listener.close()
        self._hang_up()
        await self._serving

    def _hang_up(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    def close(self) -> None:
        self.stop()
        if self.app is not None:
            asyncio.run_coroutine_threadsafe(self.app.end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
