"""A real server on a free port with a Peer as its node, in a thread of its own with its own event loop.

Tests talk plain HTTP to it; `run` executes a coroutine on its loop, next to the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import uvloop
from server_peer import Peer

from bellglass import settings
from bellglass.datadir import DataDir
from bellglass.server.__main__ import api_url
from bellglass.server.app import Application
from bellglass.server.http.sockets import bind
from bellglass.server.serving import Server, config_for

ADMIN = "bgadmin_" + "a" * 32
SECRET, INSTALLATION = "s" * 32, "abcdefgh"
T = TypeVar("T")


def make_data_dir(root: Path) -> DataDir:
    data = DataDir(root)
    data.server_dir.mkdir(parents=True)
    data.link_dir.mkdir(parents=True)
    data.installation_file.write_text(json.dumps({"id": INSTALLATION}))
    data.server_secret_file.write_text(SECRET)
    data.admin_hash_file.write_text(hashlib.sha256(ADMIN.encode()).hexdigest() + "\n")
    return data


class Harness:
    def __init__(self, root: Path, overrides: dict[str, Any] | None = None) -> None:
        self.data = DataDir(root) if DataDir(root).installation_file.exists() else make_data_dir(root)
        self.overrides = overrides
        self.settings = settings.load(
            None, environ={}, overrides={"server.port": 0, "previews.port": 0, **(overrides or {})}
        )
        self.peer = Peer(self.data.node_socket, SECRET, INSTALLATION)
        self.url = ""
        self.previews_port = 0
        self.loop: asyncio.AbstractEventLoop
        self.application: Application
        self.server: Server
        self._thread: threading.Thread
        self._clients: list[httpx2.Client] = []

    # --- life -------------------------------------------------------------------------------------------

    def start(self, *, node: bool = True) -> Harness:
        ready = threading.Event()
        failure: list[BaseException] = []

        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            if node:
                await self.peer.start()
            listener = bind("127.0.0.1", 0, stall_s=self.settings["server.stall_timeout"])
            self.url = api_url(listener)
            previews = bind(self.settings["previews.listen"], self.settings["previews.port"], stall_s=60)
            self.previews_port = previews.getsockname()[1]
            self.application = Application(self.data, self.settings, previews)
            await self.application.start()
            self.server = Server(config_for(self.application, self.settings), self.application, ready.set)
            try:
                await self.server.serve(sockets=[listener])
            finally:
                await self.application.stop()
                await self.peer.stop()

        def work() -> None:
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(serve())
            except BaseException as error:
                failure.append(error)
                ready.set()
                raise

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()
        assert ready.wait(20), "the server does not start"
        if failure:
            raise failure[0]
        if node:
            self.until(lambda: self.health()["node"] == "up")
        return self

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server does not stop"
        for client in self._clients:
            client.close()
        self._clients.clear()

    def again(self) -> Harness:
        """After `stop`: a server of the same folder, whose node has the same sandboxes."""
        made = Harness(self.data.root, self.overrides)
        made.peer.sandboxes = self.peer.sandboxes
        return made.start()

    def end_dials(self, sandbox_id: str) -> None:
        """What the node does with connections of a sandbox that ended."""

        async def end() -> None:
            self.peer.end_dials(sandbox_id)

        self.run(end())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def end(self, sandbox_id: str, reason: str) -> None:
        """A sandbox ends by itself; its event is in the journal when this returns."""

        async def end() -> None:
            self.peer.end(sandbox_id, reason)

        self.run(end())

    def hold(self, op: str) -> Callable[[], None]:
        """The node's next calls of `op` wait; calling the answer lets them go on."""

        async def gate() -> asyncio.Event:
            return asyncio.Event()

        event = self.run(gate())
        self.peer.gates[op] = event

        def release() -> None:
            self.peer.gates.pop(op, None)
            self.loop.call_soon_threadsafe(event.set)

        return release

    def until(self, true: Callable[[], bool], within_s: float = 5.0) -> None:
        deadline = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < deadline, "it did not come to be"
            time.sleep(0.01)  # the other side has no event for this

    # --- clients ----------------------------------------------------------------------------------------

    def client(self, secret: str | None) -> httpx2.Client:
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        client = httpx2.Client(base_url=self.url, headers=headers, timeout=20)
        self._clients.append(client)
        return client

    @property
    def admin(self) -> httpx2.Client:
        return self.client(ADMIN)

    def key(self, project: str = "p1") -> dict[str, Any]:
        answer = self.admin.post("/v1/keys", json={"project": project})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def project(self, name: str = "p1") -> httpx2.Client:
        """A client with a new key of the project."""
        return self.client(self.key(name)["secret"])

    def health(self) -> dict[str, Any]:
        return dict(self.client(None).get("/v1/health").json())

    def database(self, query: str) -> list[Any]:
        import sqlite3

        connection = sqlite3.connect(self.data.database_file)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()


def error_of(answer: httpx2.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """The error of an answer, after checking that it has the one shape."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    shape = answer.json()
    assert set(shape) == {"error"}, shape
    error = shape["error"]
    assert set(error) == {"code", "message", "hint", "retryable", "details", "request_id"}, error
    assert error["request_id"] == answer.headers["x-request-id"]
    if code is not None:
        assert error["code"] == code, error
    return dict(error)


def dial(harness: Harness) -> socket.socket:
    """A connection to the API, as it is."""
    host, port = harness.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def make(api: httpx2.Client, **body: Any) -> dict[str, Any]:
    """Create a sandbox over the API; its record."""
    answer = api.post("/v1/sandboxes", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def example(schema: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """What a valid request of an operation needs."""
    request: dict[str, Any] = {"params": {}}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "query" and parameter.get("required"):
            request["params"][parameter["name"]] = "x"
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        request["json"] = content["application/json"]["example"]
    elif content:
        request["content"] = b"x"
    return request
