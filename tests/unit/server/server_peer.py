"""A node for the server's tests: the real link, and just enough behind it. It can be told to fail.

It is no sandbox: nothing runs. The node itself is tested elsewhere; here only what the server makes of its answers.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from pathlib import Path
from typing import Any

from bellglass.errors import BellglassError, Conflict, FileMissing, NotFound, PortUnreachable, SandboxGone
from bellglass.link import LinkServer, LinkStream
from bellglass.model import format_time, now, parse_time

TEMPLATE = {
    "name": "base",
    "digest": "ab" * 32,
    "env": {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
    "user": "user",
    "workdir": "/home/user",
    "size_bytes": 1000,
    "built_at": "2026-01-01T00:00:00.000000Z",
}
TIERS = [
    {"tier": "container", "runtime": "runc", "version": "1.1.5", "usable": True, "reason": None, "hint": None},
    {"tier": "gvisor", "runtime": "runsc", "version": None, "usable": False, "reason": "runsc is not installed",
     "hint": "apt-get install runsc"},
    {"tier": "microvm-emulated", "runtime": "qemu", "version": "8", "usable": True, "reason": None, "hint": None},
]  # fmt: skip


PIP = {"rules": [{"host": "pip.example", "ports": [443], "protocol": "tcp", "origin": "preset:pip"}]}


async def _pour(stream: LinkStream, program: socket.socket) -> None:
    async for chunk in stream:
        await asyncio.get_running_loop().sock_sendall(program, chunk)
    program.shutdown(socket.SHUT_WR)


class Peer:
    """`fail[op]` is raised by the next calls of an operation; `gates[op]` holds them up until it is set."""

    def __init__(self, path: Path, secret: str, installation: str) -> None:
        self.socket = path
        self.fail: dict[str, BellglassError] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.reset_streams: list[str] = []
        self.sandboxes: dict[str, dict[str, Any]] = {}
        self.executions: dict[tuple[str, str], dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.journal: list[dict[str, Any]] = []
        self.acknowledged = 0
        self.templates = [dict(TEMPLATE)]
        self.wanted_pools: list[dict[str, Any]] = []
        self.members: list[str] = []
        """Ids that `pool.take` promises, one after the other."""
        self.has_network = True
        self.presets: dict[str, dict[str, Any]] = {"pip": PIP, "npm": {"problem": "npm is not there", "hint": "set it"}}
        self.released: list[tuple[str, bool]] = []
        self.dials: dict[asyncio.Task[Any], str] = {}
        self._news = asyncio.Event()
        self._identity = {"secret": secret, "installation": installation}
        self._server: LinkServer | None = None

    async def start(self) -> None:
        self._server = LinkServer(self._handle, **self._identity)
        await self._server.listen(self.socket)

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()

    def count(self, op: str) -> int:
        return sum(1 for name, _ in self.calls if name == op)

    def params(self, op: str) -> dict[str, Any]:
        """Of the last call of an operation."""
        return next(params for name, params in reversed(self.calls) if name == op)

    def event(self, kind: str, sandbox_id: str, **more: Any) -> None:
        """Write to the journal."""
        self.journal.append(
            {"seq": len(self.journal) + 1, "at": now(), "kind": kind, "sandbox_id": sandbox_id, "generation": 1, **more}
        )
        self._news.set()

    def end(self, sandbox_id: str, reason: str) -> None:
        """A sandbox ends by itself."""
        self.sandboxes[sandbox_id].update(state="ended", termination_reason=reason, ended_at=now())
        self.event("sandbox.ended", sandbox_id, reason=reason, ended_at=now())

    # --- operations -------------------------------------------------------------------------------------

    async def _handle(self, op: str, params: dict[str, Any], stream: LinkStream) -> None:
        self.calls.append((op, params))
        try:
            if gate := self.gates.get(op):
                await gate.wait()
            if error := self.fail.get(op):
                raise error
            await getattr(self, "on_" + op.replace(".", "_"))(params, stream)
        except asyncio.CancelledError:
            if stream.peer_gone == "reset":
                self.reset_streams.append(op)
            raise

    def _sandbox(self, params: dict[str, Any]) -> dict[str, Any]:
        found = self.sandboxes.get(params["sandbox_id"])
        if found is None or found["generation"] != params["generation"]:
            raise NotFound("no such sandbox")
        if found["state"] != "running":
            raise SandboxGone("ended", details={"reason": found["termination_reason"], "ended_at": found["ended_at"]})
        return found

    async def on_node_info(self, params: dict[str, Any], stream: LinkStream) -> None:
        info = {"node_id": "local", "version": "0.1.0", "tiers": TIERS, "templates": self.templates,
                "capacity": {}, "pids": {"node": 1, "helper": 2},
                "capabilities": {"network": self.has_network}}  # fmt: skip
        await stream.send_head({"result": info})

    async def on_sandbox_create(self, params: dict[str, Any], stream: LinkStream) -> None:
        started = now()
        expires = format_time(
            parse_time(started)
            .fromtimestamp(parse_time(started).timestamp() + params["spec"]["lifetime_s"])
            .astimezone()
        )
        self.sandboxes.setdefault(
            params["sandbox_id"],
            {"sandbox_id": params["sandbox_id"], "generation": params["generation"], "state": "running",
             "runtime": "runc", "runtime_version": "1.1.5", "started_at": started, "expires_at": expires,
             "termination_reason": None, "ended_at": None, "network": params["spec"]["network"],
             "network_generation": params["spec"]["network_generation"]},
        )  # fmt: skip
        found = self.sandboxes[params["sandbox_id"]]
        result = {name: found[name] for name in ("started_at", "expires_at", "runtime", "runtime_version")}
        await stream.send_head({"result": {**result, "tier": params["spec"]["tier"]}})

    async def on_sandbox_delete(self, params: dict[str, Any], stream: LinkStream) -> None:
        found = self.sandboxes.pop(params["sandbox_id"], None)
        await stream.send_head({"result": {"ended_at": now() if found else None}})

    async def on_sandbox_update(self, params: dict[str, Any], stream: LinkStream) -> None:
        found = self._sandbox(params)
        if params["lifetime_s"] is not None or "keep_for_s" in params:
            found["expires_at"] = "2030-01-01T00:00:00.000000Z"
        await stream.send_head({"result": {"expires_at": found["expires_at"]}})

    async def on_sandbox_metrics(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        await stream.send_head({"result": {"samples": []}})

    async def on_sandbox_logs(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        await stream.send_head({"result": {"lines": [], "place": [0, 0], "more": False}})

    async def on_node_presets(self, params: dict[str, Any], stream: LinkStream) -> None:
        await stream.send_head({"result": {"presets": {**self.presets, "apt": {}}}})

    async def on_sandbox_set_network(self, params: dict[str, Any], stream: LinkStream) -> None:
        found = self._sandbox(params)
        if params["network_generation"] > found["network_generation"]:
            found |= {"network": params["network"], "network_generation": params["network_generation"]}
        await self.on_sandbox_network(params, stream)

    async def on_sandbox_network(self, params: dict[str, Any], stream: LinkStream) -> None:
        found = self._sandbox(params)
        shown = {"network": found["network"], "generation": found["network_generation"], "resolved": PIP["rules"]}
        await stream.send_head({"result": shown})

    async def on_sandbox_quarantine(self, params: dict[str, Any], stream: LinkStream) -> None:
        found = self.sandboxes[params["sandbox_id"]]
        found.setdefault("quarantined_at", now())
        found.setdefault("project_id", "pjlost")
        found.setdefault("about", {})
        await stream.send_head({"result": {}})

    async def on_sandbox_release(self, params: dict[str, Any], stream: LinkStream) -> None:
        self.sandboxes[params["sandbox_id"]].pop("quarantined_at", None)
        await stream.send_head({"result": {"expires_at": "2031-01-01T00:00:00.000000Z"}})

    async def on_sandbox_list(self, params: dict[str, Any], stream: LinkStream) -> None:
        await stream.send_head({"result": {"sandboxes": list(self.sandboxes.values())}})

    async def on_pool_apply(self, params: dict[str, Any], stream: LinkStream) -> None:
        self.wanted_pools = params["pools"]
        await stream.send_head({"result": {}})

    async def on_pool_list(self, params: dict[str, Any], stream: LinkStream) -> None:
        counts = {"ready": 1, "filling": 0, "taken": 0, "draining": 0, "claimed": 0, "hits": 7, "misses": {"empty": 2},
                  "counted_since": TEMPLATE["built_at"], "problem": None,
                  "template_digest": TEMPLATE["digest"]}  # fmt: skip
        pools = [{"template": pool["template"], **counts} for pool in self.wanted_pools]
        await stream.send_head({"result": {"pools": pools}})

    async def on_pool_take(self, params: dict[str, Any], stream: LinkStream) -> None:
        taken = self.members.pop(0) if self.members and not params["has_inputs"] else None
        await stream.send_head({"result": {"sandbox_id": taken}})

    async def on_pool_release(self, params: dict[str, Any], stream: LinkStream) -> None:
        self.released.append((params["sandbox_id"], params["discard"]))
        await stream.send_head({"result": {}})

    async def on_journal_follow(self, params: dict[str, Any], stream: LinkStream) -> None:
        await stream.send_head({"result": {}})
        sent = params["after"]
        while True:
            for event in self.journal[sent:]:
                await stream.send(json.dumps(event).encode() + b"\n")
                sent = event["seq"]
            self._news.clear()
            await self._news.wait()

    async def on_journal_ack(self, params: dict[str, Any], stream: LinkStream) -> None:
        self.acknowledged = params["through"]
        await stream.send_head({"result": {}})

    async def on_execution_create(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        spec, command = params["spec"], params["spec"]["command"]
        record = {
            "id": params["execution_id"], "sandbox_id": params["sandbox_id"], "state": "exited", "command": command,
            "cwd": spec["cwd"], "user": spec["user"], "timeout_s": spec["timeout_s"], "detached": spec["detach"],
            "exit_code": 0,
        }  # fmt: skip
        key = (params["sandbox_id"], params["execution_id"])
        if self.executions.get(key, record)["command"] != command:
            raise Conflict("another command under this id")
        self.executions[key] = record
        if spec["detach"]:
            await stream.send_head({"result": record})
            return
        if command == ["stream"]:  # one line, then silence
            await stream.send_head({"status": 200, "headers": {"content-type": "application/x-ndjson"}})
            await stream.send(b'{"stream":"stdout","offset":0,"text":"on"}\n')
            await asyncio.Event().wait()
        if command == ["hang"]:  # not even a head
            await asyncio.Event().wait()
        if command == ["flood"]:
            await stream.send_head({"status": 200, "headers": {"content-type": "application/x-bellglass-frames"}})
            for _ in range(64):
                await stream.send(b"x" * 262144)
            return
        await self._result(record, stream)

    async def _result(self, record: dict[str, Any], stream: LinkStream) -> None:
        body = json.dumps({"execution": record, "stdout": "42\n", "stderr": ""}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await stream.send_head({"status": 200, "headers": headers})
        await stream.send(body)

    def _execution(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.executions[params["sandbox_id"], params["execution_id"]]
        except KeyError:
            raise NotFound("no such execution") from None

    async def on_execution_get(self, params: dict[str, Any], stream: LinkStream) -> None:
        await stream.send_head({"result": self._execution(params)})

    async def on_execution_list(self, params: dict[str, Any], stream: LinkStream) -> None:
        found = [record for (sandbox_id, _), record in self.executions.items() if sandbox_id == params["sandbox_id"]]
        await stream.send_head({"result": {"executions": found[: params["limit"]], "cursor": None}})

    async def on_execution_output(self, params: dict[str, Any], stream: LinkStream) -> None:
        await self._result(self._execution(params), stream)

    async def on_execution_stdin(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._execution(params)
        written = 0
        async for chunk in stream:
            written += len(chunk)
        await stream.send_head({"result": {"written": written, "offset": (params["offset"] or 0) + written}})

    async def on_execution_signal(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._execution(params)
        await stream.send_head({"result": {}})

    # --- ports: of this host ----------------------------------------------------------------------------

    async def on_port_dial(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        # No asyncio stream: of a program that closes with bytes unread it gives the reset, and not what came first.
        loop, program = asyncio.get_running_loop(), socket.socket()
        program.setblocking(False)
        task = asyncio.current_task()
        assert task is not None
        with program:
            try:
                await loop.sock_connect(program, ("127.0.0.1", params["port"]))
            except ConnectionRefusedError:
                raise PortUnreachable("refused", details={"port": params["port"], "reason": "refused"}) from None
            await stream.send_head({"result": {}})
            self.dials[task] = params["sandbox_id"]
            upwards = asyncio.create_task(_pour(stream, program))
            try:
                while data := await loop.sock_recv(program, 65536):
                    await stream.send(data)
                await stream.end()
                await upwards
            except (ConnectionResetError, BrokenPipeError):
                raise PortUnreachable("reset", details={"port": params["port"], "reason": "reset"}) from None
            finally:
                del self.dials[task]
                upwards.cancel()
                await asyncio.gather(upwards, return_exceptions=True)
                program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # as the agent's abort

    def end_dials(self, sandbox_id: str) -> None:
        for task, dialed in self.dials.items():
            if dialed == sandbox_id:
                task.cancel()

    # --- files: a dictionary ----------------------------------------------------------------------------

    def _info(self, path: str) -> dict[str, Any]:
        if path not in self.files:
            raise FileMissing(f"{path}: no such file", details={"field": "path"})
        return {"path": path, "name": path.rpartition("/")[2], "type": "file", "size": len(self.files[path]),
                "mode": "0644", "uid": 1000, "gid": 1000, "user": "user", "group": "user", "mtime": now(),
                "allocated_bytes": 4096, "target": None, "sha256": None}  # fmt: skip

    async def on_file_read(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        info = self._info(params["path"])
        offset, length = params.get("offset") or 0, params.get("length")
        data = self.files[params["path"]][offset:]
        data = data if length is None else data[:length]
        await stream.send_head({"result": {"info": info, "length": len(data)}})
        await stream.send(data)

    async def on_file_write(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        parts = []
        async for chunk in stream:
            parts.append(chunk)
        created = params["path"] not in self.files
        self.files[params["path"]] = b"".join(parts)
        await stream.send_head({"result": {"info": self._info(params["path"]), "created": created, "bytes": 0}})

    async def on_file_stat(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        await stream.send_head({"result": {"info": self._info(params["path"])}})

    async def on_file_list(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        entries = [self._info(path) for path in self.files]
        if params["recursive"]:  # as a large answer comes
            await stream.send_head({"result": {}})
            await stream.send(json.dumps({"entries": entries, "truncated": False}).encode())
        else:
            await stream.send_head({"result": {"entries": entries, "truncated": False}})

    async def on_file_remove(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        if self.files.pop(params["path"], None) is None and not params["missing_ok"]:
            self._info(params["path"])
        await stream.send_head({"result": {}})

    async def on_file_mkdir(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        self.files[params["path"]] = b""
        await stream.send_head({"result": {"info": self._info(params["path"])}})

    async def on_file_move(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        self._info(params["source"])
        self.files[params["destination"]] = self.files.pop(params["source"])
        await stream.send_head({"result": {}})

    async def on_file_archive_read(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        await stream.send_head({"result": {}})
        await stream.send(b"\0" * 10240)

    async def on_file_archive_write(self, params: dict[str, Any], stream: LinkStream) -> None:
        self._sandbox(params)
        size = len(await stream.read_all(2**30))
        await stream.send_head({"result": {"entries": 1, "bytes": size}})
