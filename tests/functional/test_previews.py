"""Published ports of real sandboxes: SDK, command line, programs on either loopback, frozen and ended sandboxes."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from bellglass import AsyncSandbox, SandboxGone
from bellglass.testing import kernel
from bellglass.testing.stack import Stack
from tests.functional.own import own_installation

pytestmark = pytest.mark.root
BLOCK = """
def block():  # not quite 1 MiB, and nothing in it comes twice
    import hashlib
    return b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(32767))
"""
SERVE = (
    BLOCK
    + """
import http.server, json, socket, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = json.dumps({"path": self.path, "headers": dict(self.headers)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        got, size, twice = 0, int(self.headers["Content-Length"]), block() * 2
        while got < size:
            data, at = self.rfile.read1(1 << 20), got % (len(twice) // 2)
            if not data or data != twice[at : at + len(data)]:
                break
            got += len(data)
        body = str(got).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET

Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
)
SIZE = 2**31 + 5


def serve(box: Any, port: int, address: str = "127.0.0.1", after_s: float = 0) -> Any:
    later = ["sh", "-c", f'sleep {after_s}; exec "$@"', "sh"] if after_s else []
    return box.start([*later, "python3", "-c", SERVE, address, str(port)])


def visitor(url: str, *, follow: bool = True) -> httpx2.Client:
    """A browser that knows where names below localhost are, and keeps cookies by name."""
    parts = urlsplit(url)

    class Named(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            where = request.url.copy_with(host="127.0.0.1")
            named = httpx2.Request(
                request.method, where, headers=request.headers, stream=request.stream, extensions=request.extensions
            )
            return super().handle_request(named)

    return httpx2.Client(
        base_url=f"{parts.scheme}://{parts.netloc}", transport=Named(), follow_redirects=follow, timeout=60
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_program_on_any_address_is_reached(new_box: Any, address: str) -> None:
    box = new_box()
    published = box.publish(8000)
    serve(box, 8000, address, after_s=2 if address == "0.0.0.0" else 0)  # not ready yet: the first visit waits for it
    with visitor(published.url) as browser:
        assert browser.get("/").status_code == 401
        answered = browser.get(published.token_url("/a%2Fb?x=1"))
        assert answered.status_code == 200 and answered.json()["path"] == "/a%2Fb?x=1"
        again = browser.get("/again")
        assert again.status_code == 200 and "bellglass" not in json.dumps(again.json()["headers"]).replace(box.id, "")
        published.revoke_tokens()
        assert browser.get("/again").status_code == 401
        box.publish(8000, visibility="public")
        assert browser.get("/again").status_code == 200
        assert [port.port for port in box.ports()] == [8000]
        published.unpublish()
        assert browser.get("/again").status_code == 404 and box.ports() == []


def test_only_published_ports_and_only_of_the_sandbox(new_box: Any, stack: Stack) -> None:
    """Neither the host's own services nor another port can be reached through one."""
    box = new_box()
    serve(box, 8000)
    published = box.publish(8000, visibility="public")
    api_port = urlsplit(stack.api_url).port
    # On the host somebody listens on this port; in the sandbox nobody does.
    to_api = box.publish(api_port, visibility="public")
    with visitor(published.url) as browser:
        assert browser.get("/").status_code == 200
        other = published.url.replace("-8000.", "-8001.")
        assert browser.get(other).status_code == 404
        assert browser.get(to_api.url + "/v1/health").status_code == 502


def test_ports_are_published_at_their_first_visit(new_box: Any) -> None:
    box, other = new_box(auto_publish="public"), new_box()
    assert (box.info().auto_publish, other.info().auto_publish) == ("public", None)
    url = other.publish(9000, visibility="public").url.replace("-9000.", "-8000.")
    for one in (box, other):
        serve(one, 8000)
        listens = "until (echo >/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.1; done"
        assert one.exec(["bash", "-c", listens], timeout=30).ok
    with visitor(url) as browser:
        assert browser.get("/").status_code == 404, "not unless told"
        mine = url.replace(other.id, box.id)
        assert browser.get(mine.replace("-8000.", "-8001.")).status_code == 502
        assert browser.get(mine).status_code == 200
        assert browser.get(mine.replace(f"{box.id}-8000", f"8000-{box.id}")).status_code == 200
        assert [(port.port, port.visibility) for port in box.ports()] == [(8000, "public")]
        box.ports()[0].unpublish()
        assert browser.get(mine).status_code == 404 and box.ports() == []


def test_two_gibibytes_go_up_whole_and_cost_no_memory(new_box: Any, stack: Stack) -> None:
    """Each byte is compared where it arrives."""
    box = new_box()
    serve(box, 8000)
    published = box.publish(8000)
    made: dict[str, Any] = {}
    exec(BLOCK, made)
    block = made["block"]()

    def body(size: int, wrong_at: int | None = None) -> Iterator[bytes]:
        sent = 0
        while sent < size:
            piece = block[: size - sent]
            if wrong_at is not None and sent <= wrong_at < sent + len(piece):
                piece = piece[: wrong_at - sent] + b"?" + piece[wrong_at - sent + 1 :]
            sent += len(piece)
            yield piece

    url = urlsplit(published.url)
    headers = {"host": url.netloc, "x-bellglass-token": published.token().token}

    def put(size: int, **more: Any) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=120)
        connection.request("PUT", "/", body(size, **more), {**headers, "content-length": str(size)})
        answered = connection.getresponse()
        told = answered.read()
        connection.close()
        assert answered.status == 200
        return int(told)

    few, wrong_at = 2 * len(block), len(block) + 100
    assert put(few) == few and wrong_at - 2**20 <= put(few, wrong_at=wrong_at) <= wrong_at
    pids = [stack.pids()[name] for name in ("server", "node")]
    before = sum(map(resident_bytes, pids))
    assert put(SIZE) == SIZE
    assert sum(map(peak_bytes, pids)) < before + 64 * 2**20


def resident_bytes(pid: int) -> int:
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from now on
    return status_bytes(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    return status_bytes(pid, "VmHWM")


def status_bytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def test_visits_end_with_the_sandbox(new_box: Any) -> None:
    box = new_box()
    serve(box, 8000)
    published = box.publish(8000, visibility="public")
    with visitor(published.url) as browser:
        assert browser.get("/").status_code == 200
        box.delete()
        assert browser.get("/").status_code == 404
        with pytest.raises(Exception, match=r"no such sandbox"):
            box.publish(8000)


def test_visits_are_activity(new_box: Any) -> None:
    box = new_box(idle_timeout="3s")
    box.files.write_text("serve.py", SERVE)
    # In the background of an execution that has ended: only visits say that somebody uses it.
    box.exec("setsid python3 serve.py 127.0.0.1 8000 >/dev/null 2>&1 &")
    published = box.publish(8000, visibility="public")
    with visitor(published.url) as browser:
        began = time.monotonic()
        while time.monotonic() < began + 5:
            assert browser.get("/").status_code == 200
        assert box.info().state == "running"
    deadline = time.monotonic() + 30
    while box.info().state == "running":
        assert time.monotonic() < deadline
    assert box.info().termination_reason == "idle"


def test_a_frozen_program_is_dialed_and_answers_when_it_goes_on(new_box: Any) -> None:
    """The agent never stands still: the connection is made, and waits."""
    box = new_box()
    serve(box, 8000)
    published = box.publish(8000, visibility="public")
    with visitor(published.url) as browser:
        assert browser.get("/").status_code == 200
        (pid,) = [each.pid for each in kernel.processes() if box.id in each.cgroups and runs(each.pid, "python3")]
        line = next(text for text in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if text.startswith("0::"))
        freeze = Path("/sys/fs/cgroup/unified" + line.removeprefix("0::")) / "cgroup.freeze"
        freeze.write_text("1")
        try:
            with pytest.raises(httpx2.ReadTimeout):
                browser.get("/", timeout=1)
            box.files.write_text("meanwhile", "the agent works")
        finally:
            freeze.write_text("0")
        assert browser.get("/").status_code == 200


def runs(pid: int, program: str) -> bool:
    return program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_an_ended_sandbox_says_so(new_box: Any) -> None:
    box = new_box(lifetime="3s")
    published = box.publish(8000, visibility="public")
    deadline = time.monotonic() + 30
    while box.info().state == "running":
        assert time.monotonic() < deadline
    with visitor(published.url) as browser:
        assert browser.get("/").status_code == 410
    with pytest.raises(SandboxGone):
        box.publish(8000)


def test_node_and_server_die_under_a_visit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        own_installation(settings={"previews.port": port}) as running,
        running.sandbox(cpus=1, memory="512MiB", disk="1GiB") as box,
    ):
        serve(box, 8000)
        published = box.publish(8000)
        headers = {"x-bellglass-token": published.token().token}
        with visitor(published.url) as browser:
            assert browser.get("/", headers=headers).status_code == 200
            running.kill("node")
            assert browser.get("/", headers=headers).status_code == 200, "it waits until the node is back"
        running.kill("server")
        deadline = time.monotonic() + 30
        while True:
            try:
                with visitor(published.url) as browser:
                    assert browser.get("/", headers=headers).status_code == 200
                    assert browser.get("/").status_code == 401
                break
            except httpx2.TransportError:
                assert time.monotonic() < deadline


def test_the_async_sdk(stack: Stack) -> None:
    async def scenario() -> None:
        options = {"api_url": stack.api_url, "api_key": stack.api_key, "memory": "512MiB", "disk": "1GiB"}
        async with AsyncSandbox("base", **options) as box:
            await box.start(["python3", "-c", SERVE, "127.0.0.1", "8000"])
            published = await box.publish(8000, expires_in="1h", host_header="localhost:8000")
            url = await published.token_url(single_use=True)
            with visitor(published.url) as browser:
                answered = await asyncio.to_thread(browser.get, url)
                assert answered.status_code == 200 and answered.json()["headers"]["Host"] == "localhost:8000"
                assert (await asyncio.to_thread(browser.get, "/")).status_code == 200
            with visitor(published.url) as another:
                assert (await asyncio.to_thread(another.get, url)).status_code == 401
            assert [port.info.host_header for port in await box.ports()] == ["localhost:8000"]
            await published.unpublish()

    asyncio.run(scenario())


def test_the_command_line(new_box: Any, stack: Stack) -> None:
    box = new_box()
    serve(box, 8000)
    printed = stack.command("publish", box.id, "8000", "--single-use", "--token-expires-in", "5m")
    assert printed.returncode == 0, printed.stderr
    url = printed.stdout.decode().strip()
    with visitor(url) as browser:
        assert browser.get(url).status_code == 200
    with visitor(url) as browser:
        assert browser.get(url).status_code == 401
    told = json.loads(stack.command("publish", box.id, "8000", "--public", "--json").stdout)
    assert told["visibility"] == "public" and told["token"] is None
    assert b"public" in stack.command("ports", box.id).stdout
    assert stack.command("unpublish", box.id, "8000").returncode == 0
    assert json.loads(b"[" + stack.command("ports", box.id, "--json").stdout + b"]") == []
    for log in stack.data.logs_dir.glob("*.log"):
        assert b"bgp_" not in log.read_bytes(), f"a token stands in {log.name}"
    refused = stack.command("publish", box.id, "8000", "--host-header", "a b")
    assert refused.returncode == 1 and b"host_header" in refused.stderr


def test_many_visitors_at_once(new_box: Any) -> None:
    box = new_box()
    serve(box, 8000)
    published = box.publish(8000, visibility="public")
    statuses: list[int] = []

    def visit() -> None:
        with visitor(published.url) as browser:
            for number in range(20):
                answered = browser.get(f"/{number}")
                statuses.append(answered.status_code if answered.json()["path"] == f"/{number}" else 0)

    threads = [threading.Thread(target=visit) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 400
