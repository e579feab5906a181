"""A node in this process: the fake driver, the real agent, commands as the current user, driven through a real link."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bellglass import ids, settings
from bellglass.datadir import DataDir
from bellglass.link import LinkClient
from bellglass.node import recovery
from bellglass.node.app import Node
from bellglass.node.drivers.fake import FakeDriver
from bellglass.node.templates import agent_binary
from bellglass.wire.output import OutputDecoder, OutputType

SECRET = "unit-test-secret"
INSTALLATION = "aaaaaaaa"
ME = pwd.getpwuid(os.geteuid()).pw_name
DIGEST = "0" * 64


def make_template(folder: Path) -> None:
    built = folder / f"base-{DIGEST[:16]}"
    (built / "rootfs" / "bin").mkdir(parents=True)
    (built / "rootfs" / "bin" / "bash").symlink_to("/bin/bash")
    meta = {
        "name": "base",
        "digest": DIGEST,
        "version": "1",
        "size_bytes": 1,
        "files": 1,
        "built_at": "2026-01-01T00:00:00Z",
        "env": {"LANG": "C.UTF-8"},
        "user": ME,
        "workdir": "/tmp",
    }
    (built / "template.json").write_text(json.dumps(meta))


class Box:
    """One sandbox of the node under test."""

    def __init__(self, bench: Bench, sandbox_id: str, workdir: str) -> None:
        self.bench = bench
        self.id = sandbox_id
        self.workdir = workdir

    @property
    def ref(self) -> dict[str, Any]:
        return {"sandbox_id": self.id, "generation": 1}

    def spec(self, command: Any, **more: Any) -> dict[str, Any]:
        spec = {
            "command": command,
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            "cwd": self.workdir,
            "user": ME,
            "timeout_s": 20.0,
        }
        return spec | more

    async def start(self, command: Any, *, execution_id: str | None = None, **more: Any) -> dict[str, Any]:
        """A detached execution's record."""
        params = self.ref | {
            "execution_id": execution_id or ids.new_ulid(),
            "spec": self.spec(command, detach=True, **more),
        }
        return await self.bench.link.call("execution.create", params)

    async def open(
        self,
        command: Any,
        *,
        accept: str = "frames",
        execution_id: str | None = None,
        keepalive_s: float = 15.0,
        **more: Any,
    ) -> Any:
        params = self.ref | {
            "keepalive_s": keepalive_s,
            "execution_id": execution_id or ids.new_ulid(),
            "spec": self.spec(command, **more),
            "accept": accept,
        }
        return await self.bench.link.open("execution.create", params, body=False)

    async def exec(self, command: Any, **more: Any) -> dict[str, Any]:
        """The buffered result of a waiting execution."""
        async with await self.open(command, accept="json", **more) as stream:
            await stream.head()
            return json.loads(await stream.read_all(64 * 2**20))

    async def call(self, op: str, **params: Any) -> dict[str, Any]:
        return await self.bench.link.call(op, self.ref | params)

    async def body(self, op: str, **params: Any) -> bytes:
        async with await self.bench.link.open(op, self.ref | params, body=False) as stream:
            await stream.head()
            return await stream.read_all(2**30)


class Bench:
    def __init__(
        self,
        root: Path,
        *,
        faults: Mapping[str, Any] | None = None,
        boot_id_file: Path = recovery.BOOT_ID_FILE,
        **overrides: Any,
    ) -> None:
        self.root = root
        self.boot_id_file = boot_id_file
        self.data = DataDir(root)
        make_template(root / "templates")
        values = {"node.driver": "fake", "node.templates_dir": str(root / "templates")} | overrides
        self.settings = settings.load(None, {}, values)
        self.driver = FakeDriver(root, agent_binary(), faults=faults)
        self.node: Node
        self.link: LinkClient

    async def start(self) -> None:
        self.node = await Node.start(
            self.data, self.settings, INSTALLATION, driver=self.driver, boot_id_file=self.boot_id_file
        )
        await self.node.listen(secret=SECRET)
        self.link = await LinkClient.connect(self.data.node_socket, secret=SECRET, installation=INSTALLATION)

    async def stop(self) -> None:
        await self.link.close()
        await self.node.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def sandbox_spec(self, **more: Any) -> dict[str, Any]:
        spec = {
            "template": "base",
            "template_digest": DIGEST,
            "env": {},
            "user": ME,
            "workdir": str(self.root / "work"),
            "cpus": 1.0,
            "memory_bytes": 256 * 2**20,
            "disk_bytes": 2**30,
            "inodes": 65536,
            "pids": 128,
            "lifetime_s": 600.0,
            "idle_timeout_s": None,
            "tier": "process",
            "network": "deny",
        }
        return spec | more

    async def create(
        self, *, sandbox_id: str | None = None, inputs: Mapping[str, Any] | None = None, **more: Any
    ) -> Box:
        sandbox_id = sandbox_id or ids.new_sandbox_id()
        spec = self.sandbox_spec(**more)
        params = {"sandbox_id": sandbox_id, "generation": 1, "project_id": "pj", "spec": spec, "inputs": inputs or {}}
        await self.link.call("sandbox.create", params)
        return Box(self, sandbox_id, spec["workdir"])

    async def delete(self, box: Box) -> dict[str, Any]:
        return await self.link.call("sandbox.delete", box.ref)

    async def delete_all(self) -> None:
        for row in (await self.link.call("sandbox.list", {}))["sandboxes"]:
            if row["state"] in ("running", "creating"):
                await self.link.call("sandbox.delete", {k: row[k] for k in ("sandbox_id", "generation")})
        async with asyncio.timeout(10):
            while not all(row.reclaimed for row in self.node.sandboxes.rows()):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="bgnode-") as folder:
        made = Bench(Path(folder), **options)
        await made.start()
        try:
            yield made
            await made.delete_all()
        finally:
            # A test that failed leaves no machine behind either.
            left = list(made.driver.handles)
            await made.stop()
            for handle in left:
                await handle.destroy()
                await handle.reclaim()


async def frames(stream: Any) -> tuple[bytes, bytes, list[Any]]:
    """Standard output, standard error and the other events of a stream of frames, read to its end."""
    decoder, out, err, others = OutputDecoder(), b"", b"", []
    async for chunk in stream:
        for event in decoder.feed(chunk):
            if event.type is OutputType.STDOUT:
                out += event.data
            elif event.type is OutputType.STDERR:
                err += event.data
            else:
                others.append(event)
    return out, err, others
