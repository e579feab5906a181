"""A sandbox calls the API as itself, from inside: under every network, through restarts, and its own alone."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bellglass import InvalidRequest, Network, WarmPools
from bellglass.model import PoolStatus
from bellglass.server.identity.access import ACTIONS
from bellglass.testing.daemons import end, end_and_await, process
from bellglass.testing.stack import Stack
from tests.functional.own import own_installation

pytestmark = pytest.mark.root
PROBE = (Path(__file__).parent / "identity_probe.py").read_text()
SMALL: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "15m"}
NAMES = ("BELLGLASS_SANDBOX_ID", "BELLGLASS_API_URL", "BELLGLASS_TOKEN")
UNKNOWN = "sb" + "7" * 20


def ask_all(box: Any, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    done = box.exec(["python3", "-c", PROBE], stdin=json.dumps(requests), timeout="5m")
    assert done.exit_code == 0, done.stderr
    return list(json.loads(done.stdout))


def ask(box: Any, path: str = "/v1/me", method: str = "GET", **more: Any) -> dict[str, Any]:
    return ask_all(box, {"method": method, "path": path, **more})[0]


def until_answered(box: Any, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while (answer := ask(box))["status"] != 200:
        assert answer["status"] in (0, 503), answer
        assert time.monotonic() < deadline, answer


def test_variables_and_what_they_lead_to(shared_box: Any) -> None:
    printed = shared_box.exec(["env"]).stdout
    found = dict(line.split("=", 1) for line in printed.splitlines() if line.startswith("BELLGLASS_"))
    assert found == {
        "BELLGLASS_SANDBOX_ID": shared_box.id,
        "BELLGLASS_API_URL": "http://198.18.0.1",
        "BELLGLASS_TOKEN": "this-sandbox",
    }
    started = shared_box.start("env > /tmp/of-start; echo done")
    assert started.wait().exit_code == 0
    assert "BELLGLASS_TOKEN=this-sandbox" in shared_box.files.read_text("/tmp/of-start")
    me, own = ask_all(shared_box, {"path": "/v1/me"}, {"path": f"/v1/sandboxes/{shared_box.id}"})
    assert me["status"] == 200 and json.loads(me["body"])["sandbox"] == {"id": shared_box.id}
    assert json.loads(own["body"]) == shared_box.info().to_json()


def test_names_of_the_platform_are_refused(stack: Stack, shared_box: Any) -> None:
    assert shared_box.exec(["printenv", "MINE"], env={"MINE": "x"}).stdout == "x\n"
    for name in (*NAMES, "BELLGLASS_API_KEY"):
        with pytest.raises(InvalidRequest, match="reserved"):
            shared_box.exec(["true"], env={name: "x"})
        with pytest.raises(InvalidRequest, match="reserved"):
            stack.sandbox(env={name: "x"}, **SMALL)


def test_every_route_from_inside(
    stack: Stack, shared_box: Any, api: httpx2.Client, new_box: Callable[..., Any]
) -> None:
    """Own ids where one fits, then another sandbox's and one that nobody has: both are as unknown."""
    other, asking, asking_too = new_box(), new_box(), new_box()
    document = api.get("/v1/openapi.json").json()
    routes = [
        (operation["operationId"], method.upper(), path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method != "head"
    ]
    routes.sort(key=lambda route: {"port.publish": -1, "port.unpublish": 1}.get(route[0], 0))

    def requests(sandbox_id: str) -> list[dict[str, Any]]:
        return [
            {
                "method": method,
                "path": re.sub(r"[{}]", "", path.replace("{sandbox_id}", sandbox_id).replace("{port}", "8000")),
                "body": {} if method in ("POST", "PUT", "PATCH") else None,
            }
            for _, method, path in routes
        ]

    with ThreadPoolExecutor(3) as threads:
        own, theirs, nobodys = threads.map(
            lambda box, sandbox_id: ask_all(box, *requests(sandbox_id)),
            (shared_box, asking, asking_too),
            (shared_box.id, other.id, UNKNOWN),
        )
    for (action, _, _), answer in zip(routes, own, strict=True):
        if action in ACTIONS:
            assert answer["status"] in (200, 204), (action, answer)
        else:
            error = json.loads(answer["body"])["error"]
            assert (answer["status"], error["details"]) == (403, {"action": action}), answer
    for (action, _, path), their, nobody in zip(routes, theirs, nobodys, strict=True):
        if "{sandbox_id}" in path:
            bodies = [json.loads(each["body"])["error"] | {"request_id": ""} for each in (their, nobody)]
            assert bodies[0] == bodies[1] and their["status"] == nobody["status"] == 404, (action, their)
    assert other.info().state == "running" and api.get(f"/v1/sandboxes/{other.id}/ports").json()["items"] == []


def test_publishes_its_ports_as_private(stack: Stack, shared_box: Any, api: httpx2.Client) -> None:
    path = f"/v1/sandboxes/{shared_box.id}/ports/8001"
    server = shared_box.start(["python3", "-m", "http.server", "8001", "--bind", "127.0.0.1"])
    try:
        published = ask(shared_box, path, "PUT", body={})
        assert published["status"] == 200, published
        url = json.loads(published["body"])["url"]
        token = api.post(path + "/tokens", json={}).json()["token"]
        where = httpx2.URL(url)
        visit = {"host": where.netloc.decode()}
        here = f"http://127.0.0.1:{where.port}/"
        assert httpx2.get(here, headers=visit, trust_env=False).status_code == 401
        deadline = time.monotonic() + 30
        while httpx2.get(here, headers=visit | {"x-bellglass-token": token}, trust_env=False).status_code != 200:
            assert time.monotonic() < deadline
        for body in ({"visibility": "public"}, {"own_address": True}):
            assert ask(shared_box, path, "PUT", body=body)["status"] == 403
        assert httpx2.get(here, headers=visit, trust_env=False).status_code == 401
        assert [each["status"] for each in ask_all(
            shared_box, {"path": path.rpartition("/")[0]}, {"path": path, "method": "DELETE"}, {"path": path}
        )] == [200, 204, 404]  # fmt: skip
    finally:
        server.signal("SIGKILL")
        server.wait()


def test_a_marker_that_was_copied_out(stack: Stack, shared_box: Any) -> None:
    """It is no key; and what it stands for lies behind a socket that lets the node in alone."""
    assert ask(shared_box)["status"] == 200
    with httpx2.Client(
        base_url=stack.api_url, headers={"Authorization": "Bearer this-sandbox"}, trust_env=False
    ) as out:
        for path in ("/v1/me", f"/v1/sandboxes/{shared_box.id}", "/v1/sandboxes"):
            assert out.get(path).status_code == 401
    where = str(stack.data.identity_socket)
    with socket.socket(socket.AF_UNIX) as root:
        root.connect(where)
        try:
            root.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert root.recv(1000) == b"", "root is not the node"
        except (ConnectionResetError, BrokenPipeError):
            pass  # it may be thrown out before it has said a word

    connect = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.connect(sys.argv[1])\n"
        "s.sendall(b'GET /v1/me HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n"
        "print(s.recv(1000).decode())\n"
    )

    def as_user(uid: int, gid: int) -> str:
        argv = [sys.executable, "-c", connect, where]
        done = subprocess.run(argv, user=uid, group=gid, extra_groups=[], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    node = stack.data.node_dir.stat()
    assert as_user(node.st_uid, node.st_gid).startswith("HTTP/1.1 401 "), "the node gets in, and has to say who calls"
    assert "PermissionError" in as_user(65534, 65534)


def test_forged_and_smuggled(shared_box: Any, new_box: Callable[..., Any], api: httpx2.Client) -> None:
    other = new_box()
    host, token = "Host: 198.18.0.1\r\n", "Authorization: Bearer this-sandbox\r\n"
    good = f"GET /v1/me HTTP/1.1\r\n{host}{token}\r\n"
    forged = "".join(
        f"{name}: {other.id}\r\n"
        for name in (
            "X-Bellglass-Sandbox",
            "X-Sandbox-Id",
            "X-Forwarded-For",
            "X-Real-Ip",
            "Forwarded",
            "X-User",
            "Via",
        )
    )
    hidden = f"DELETE /v1/sandboxes/{other.id} HTTP/1.1\r\n{host}{token}\r\n"
    own = f"/v1/sandboxes/{shared_box.id}"
    put = f"PUT {own}/ports/8002 HTTP/1.1\r\n{host}{token}"
    raw = {
        good: 200,
        f"GET /v1/me HTTP/1.1\r\n{host}{token}{forged}\r\n": 200,
        f"GET http://198.18.0.1/v1/me HTTP/1.1\r\n{host}{token}\r\n": 200,
        good + hidden: 200,
        f"{put}Content-Length: 2\r\n\r\n{{}}{hidden}": 200,
        f"{put}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}": 400,
        f"{put}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n": 400,
        f"GET /v1/me HTTP/1.1\r\n{host}{host}{token}\r\n": 400,
        f"GET /v1/me HTTP/1.1\r\nHost: localhost\r\n{token}\r\n": 400,
        f"GET http://localhost/v1/me HTTP/1.1\r\n{host}{token}\r\n": 400,
        f"GET /v1/me HTTP/1.1\r\n{host}{token} folded\r\n\r\n": 400,
        f"GET /v1/me HTTP/1.1\r\n{host}X: a\nAuthorization: Bearer x\r\n{token}\r\n": 400,
        f"GET /v1/me HTTP/1.1\r\n{host}\r\n": 401,
        f"GET /v1/me HTTP/1.1\r\n{host}{token}{token}\r\n": 401,
    } | {
        f"GET {path} HTTP/1.1\r\n{host}{token}\r\n": 400
        for path in (
            f"/v1/sandboxes/../sandboxes/{other.id}",
            f"/v1/me/../sandboxes/{other.id}",
            f"{own}/..%2f{other.id}",
            f"{own}%2f..%2f{other.id}",
            f"/v1//sandboxes/{other.id}",
            f"/v1/sandboxes/%73b{other.id[2:]}",
            f"{own}%00",
            f"{own}%23",
            f"{own};{other.id}",
            f"{own}/",
            f"/v1/sandboxes/{other.id}#{shared_box.id}",
        )
    }
    answers = ask_all(shared_box, *({"raw": each} for each in raw))
    for (request, status), answer in zip(raw.items(), answers, strict=True):
        assert answer["status"] == status, (request, answer)
        assert answer["body"].count("HTTP/1.1 ") == 1, (request, answer)
        assert other.id not in answer["body"] or status == 400
        if status == 200 and request.startswith("GET"):
            assert f'"sandbox":{{"id":"{shared_box.id}"}}' in answer["body"]
    assert other.info().state == "running"
    api.delete(f"{own}/ports/8002")


def test_the_audit_names_the_sandbox(stack: Stack, shared_box: Any) -> None:
    assert ask(shared_box, f"/v1/sandboxes/{shared_box.id}", "DELETE")["status"] == 403
    deadline = time.monotonic() + 10
    while True:
        with sqlite3.connect(f"file:{stack.data.database_file}?mode=ro", uri=True) as database:
            query = "select count(*) from audit where key_id = ? and action = 'sandbox.delete' and status = 403"
            if database.execute(query, (shared_box.id,)).fetchone()[0]:
                break
        assert time.monotonic() < deadline


def test_off(new_box: Callable[..., Any], api: httpx2.Client) -> None:
    on, off = new_box(), new_box(identity=False)
    assert ask(on)["status"] == 200
    answer = ask(off)
    assert answer["status"] == 0 and answer["error"] == "ConnectionRefusedError" and answer["took_s"] < 2
    assert "BELLGLASS" not in off.exec(["env"]).stdout
    assert off.info().identity is False and on.info().identity is True


def test_a_flood_is_its_own_sandboxes(new_box: Callable[..., Any]) -> None:
    """One has all of its connections hang and knocks all the time; the other is answered as ever."""
    flooding, calm = new_box(pids=600), new_box()
    script = (
        "import socket, threading, time\n"
        "def knock(hang):\n"
        "    while True:\n"
        "        try:\n"
        "            c = socket.create_connection(('198.18.0.1', 80), timeout=20)\n"
        "            c.sendall(b'GET /v1/me HTTP/1.1\\r\\n' if hang else b'GET / HTTP/1.1\\r\\n\\r\\n')\n"
        "            c.recv(1000)\n"
        "        except OSError: pass\n"
        "for n in range(100): threading.Thread(target=knock, args=(n % 2,)).start()\n"
        "print('on', flush=True)\n"
    )
    begun = [each["took_s"] for each in ask_all(calm, *[{"path": "/v1/me"}] * 20)]
    started = flooding.start(["python3", "-c", script])
    assert next(iter(started.output())).text == "on\n"
    meanwhile = ask_all(calm, *[{"path": "/v1/me"}] * 20)
    assert [each["status"] for each in meanwhile] == [200] * 20
    assert sorted(each["took_s"] for each in meanwhile)[10] < 10 * sorted(begun)[10] + 0.5
    started.signal("SIGKILL")
    started.wait()


def test_many_at_once_are_all_answered(shared_box: Any) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: ask_all(shared_box, *[{"path": "/v1/me"}] * 20), range(4)))
    assert [each["status"] for answers in found for each in answers] == [200] * 80


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    """Its daemons are killed."""
    with own_installation() as running:
        yield running


def test_whatever_the_network(own: Stack) -> None:
    with own.sandbox(**SMALL) as box:
        for network in ("deny", "open", Network(allow=["api.example.com:443"])):
            box.network.set(network)
            assert ask(box)["status"] == 200, network


def test_without_proxy_and_resolver(own: Stack) -> None:
    with own.sandbox(**SMALL) as box:
        held = process(own, "supervisor")
        assert held is not None
        held.send(signal.SIGSTOP)  # so that they stay away
        try:
            end(own, "proxy")
            end(own, "resolver")
            assert ask(box)["status"] == 200
        finally:
            held.send(signal.SIGCONT)


@pytest.mark.parametrize("daemon", ["node", "server"])
def test_after_the_end_of(own: Stack, daemon: str) -> None:
    with own.sandbox(**SMALL) as box:
        assert ask(box)["status"] == 200
        end_and_await(own, daemon)
        until_answered(box)


def test_sandboxes_from_a_pool(own: Stack) -> None:
    with WarmPools(api_url=own.api_url, admin_key=own.admin_key) as pools:
        pools.set("base", size=2, cpus=1, memory="256MiB", disk="512MiB")
        deadline = time.monotonic() + 60
        while status(pools).ready < 2:
            assert time.monotonic() < deadline
        with own.sandbox(**SMALL) as on, own.sandbox(identity=False, **SMALL) as off:
            assert status(pools).hits >= 2
            assert json.loads(ask(on)["body"])["sandbox"] == {"id": on.id}
            answer = ask(off)
            assert answer["status"] == 0 and answer["error"] == "ConnectionRefusedError"
        pools.delete("base")


def status(pools: WarmPools) -> PoolStatus:
    found = pools.get("base").status
    assert found is not None
    return found
