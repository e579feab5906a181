"""The control plane: lives, lists, networks, ports, metrics, and what is refused by name."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from e2b import (
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxNetworkOpts,
    SandboxQuery,
    SandboxState,
    Template,
    Volume,
)

REFUSED = "501: "


@pytest.fixture
def create() -> Iterator[Callable[..., Sandbox]]:
    """Sandboxes that are gone after the test."""
    made: list[Sandbox] = []

    def make(**options: Any) -> Sandbox:
        made.append(Sandbox.create(**{"timeout": 120, **options}))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.kill()


def test_a_life(create: Callable[..., Sandbox]) -> None:
    sandbox = create(metadata={"team": "red"}, envs={"FROM_CREATE": "yes"})
    info = sandbox.get_info()
    assert (info.sandbox_id, info.template_id, info.state) == (sandbox.sandbox_id, "base", SandboxState.RUNNING)
    assert info.metadata == {"team": "red"} and info.cpu_count >= 1 and info.memory_mb > 0
    assert timedelta(seconds=100) < info.end_at - info.started_at < timedelta(seconds=130)
    assert sandbox.is_running()
    assert sandbox.commands.run("echo $FROM_CREATE").stdout == "yes\n"
    other = Sandbox.connect(sandbox.sandbox_id)
    assert other.commands.run("echo there").stdout == "there\n"
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert not sandbox.is_running()
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(NotFoundException):
        sandbox.set_timeout(10)


def test_ends(create: Callable[..., Sandbox]) -> None:
    sandbox = create(timeout=60)
    end = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert sandbox.get_info().end_at == end, "connect never shortens"
    Sandbox.connect(sandbox.sandbox_id, timeout=600)
    assert sandbox.get_info().end_at > end + timedelta(seconds=300)
    sandbox.set_timeout(1)
    assert sandbox.get_info().end_at < end
    deadline = time.monotonic() + 30
    while sandbox.is_running():
        assert time.monotonic() < deadline, "it outlives its end"
        time.sleep(0.2)


def test_lists(create: Callable[..., Sandbox]) -> None:
    mark = f"run {uuid.uuid4()} ä+&="
    made = [create(metadata={"the mark": mark, "n": str(n)}).sandbox_id for n in range(3)]
    create(metadata={"the mark": mark + "x"})

    def ids(limit: int | None = None, **query: Any) -> list[str]:
        found = []
        paginator = Sandbox.list(query=SandboxQuery(metadata={"the mark": mark}, **query), limit=limit)
        while paginator.has_next:
            found += [info.sandbox_id for info in paginator.next_items()]
        return found

    assert ids() == ids(limit=1) == ids(limit=2) == made[::-1]
    assert ids(state=[SandboxState.RUNNING]) == made[::-1]
    assert ids(state=[SandboxState.PAUSED]) == []
    found = Sandbox.list(query=SandboxQuery(metadata={"the mark": mark, "n": "1"})).next_items()
    assert [info.sandbox_id for info in found] == [made[1]]
    assert found[0].metadata == {"the mark": mark, "n": "1"}
    with pytest.raises(SandboxException):
        Sandbox.list(next_token="x").next_items()


def test_programs_find_what_they_run_in(create: Callable[..., Sandbox]) -> None:
    sandbox = create(envs={"MINE": "1"})
    info = sandbox.get_info()
    told = {
        "E2B_SANDBOX": "true",
        "E2B_SANDBOX_ID": sandbox.sandbox_id,
        "E2B_TEMPLATE_ID": info.template_id,
        "E2B_TEAM_ID": sandbox.commands.run("echo $E2B_TEAM_ID").stdout.strip(),
    }
    assert info.template_id == "base"
    assert re.fullmatch("pj[a-z0-9]{16}", told["E2B_TEAM_ID"])
    for name, value in told.items():
        assert sandbox.commands.run(f"echo ${name}").stdout.strip() == value
        assert sandbox.files.read(f"/run/e2b/.{name}", user="root") == value
        assert sandbox.commands.run(f"cat /run/e2b/.{name}; echo $MINE").stdout == value + "1\n"
    assert sandbox.commands.run("echo $E2B_SANDBOX", envs={"E2B_SANDBOX": "own"}).stdout == "own\n"


def test_keys_are_of_projects(create: Callable[..., Sandbox]) -> None:
    sandbox = create()
    with pytest.raises(AuthenticationException):
        Sandbox.connect(sandbox.sandbox_id, api_key="e2b_" + "0" * 40)


def test_networks(create: Callable[..., Sandbox]) -> None:
    offline = create(allow_internet_access=False)
    assert offline.get_info().allow_internet_access is False
    narrow = create(network={"deny_out": ["0.0.0.0/0"], "allow_out": ["api.example.com", "203.0.114.0/24"]})
    shown = narrow.get_info().network
    assert shown is not None
    assert shown["allow_out"] == ["api.example.com", "203.0.114.0/24"]
    assert shown["deny_out"] == ["0.0.0.0/0"]
    if hasattr(narrow, "update_network"):
        narrow.update_network({"allow_internet_access": False})
        assert narrow.get_info().allow_internet_access is False
        narrow.update_network({})
        assert narrow.get_info().allow_internet_access is True
    but_one = create(network={"deny_out": ["203.0.114.7", "203.0.115.0/24"], "allow_out": ["203.0.115.0/25"]})
    shown = but_one.get_info().network
    assert shown is not None and shown["deny_out"] == ["203.0.114.7/32", "203.0.115.128/25"]
    assert but_one.get_info().allow_internet_access is True
    with pytest.raises(SandboxException, match=REFUSED):
        create(network={"deny_out": ["0.0.0.0/1"], "allow_out": [f"9.{number}.0.1" for number in range(0, 256, 2)]})
    with pytest.raises(SandboxException, match="400: "):
        create(network={"allow_out": ["api.example.com"]})


def visit(host: str, **headers: str) -> tuple[int, bytes]:
    """`host` as a browser would ask for it; names below localhost need no DNS here."""
    port = host.rpartition(":")[2]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": host, **named})
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


SERVER = "python3 -c \"import http.server as h\nclass S(h.BaseHTTPRequestHandler):\n def do_GET(s):\n  s.send_response(200); s.end_headers(); s.wfile.write(str(s.headers).encode())\nh.HTTPServer(('127.0.0.1', 8000), S).serve_forever()\""  # noqa: E501


def serve(sandbox: Sandbox) -> None:
    sandbox.commands.run(SERVER, background=True)
    sandbox.commands.run("until (echo >/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep .1; done", timeout=30)


def test_ports_have_names(create: Callable[..., Sandbox]) -> None:
    sandbox = create()
    host = sandbox.get_host(8000)
    assert host.startswith(f"8000-{sandbox.sandbox_id}.")
    status, body = visit(host)
    said = json.loads(body)
    assert (status, said["message"]) == (502, "The sandbox is running but port is not open")
    for browser in ({"User_Agent": "Mozilla/5.0 (X11)"}, {"Accept": "text/html"}):
        status, body = visit(host, **browser)
        assert status == 502 and b"<title>Closed Port Error</title>" in body
    status, body = visit(host, User_Agent="Mozilla/5.0 (X11)", Accept="application/json")
    assert json.loads(body) == said, "a page's own request for data"
    serve(sandbox)
    assert visit(host)[0] == 200, "published by the first visit"
    sandbox.kill()
    status, body = visit(host)
    assert (status, json.loads(body)["message"]) == (502, "The sandbox was not found")


def test_programs_get_the_host_that_was_asked_for(create: Callable[..., Sandbox]) -> None:
    for network, host in (({"mask_request_host": "localhost:${PORT}"}, b"localhost:8000"), ({}, b"8000-")):
        sandbox = create(network=network)
        serve(sandbox)
        status, body = visit(sandbox.get_host(8000))
        assert status == 200 and b"Host: " + host in body


TLS_SERVER = """
openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 1 -subj /CN=anybody 2>/dev/null
python3 -c "import http.server as h, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain('c.pem', 'k.pem')
server = h.HTTPServer(('127.0.0.1', 8443), h.SimpleHTTPRequestHandler)
server.socket = context.wrap_socket(server.socket, server_side=True); server.serve_forever()"
"""


def test_ports_that_speak_tls(create: Callable[..., Sandbox]) -> None:
    if "https_ports" not in SandboxNetworkOpts.__annotations__:
        return  # 2.45 has no word for it
    sandbox = create(network={"https_ports": [8443]})
    shown = sandbox.get_info().network
    assert shown is not None and shown["https_ports"] == [8443]
    sandbox.files.write("page/only-here", "x")
    sandbox.commands.run(TLS_SERVER, background=True, cwd="/home/user/page")
    sandbox.commands.run("until (echo >/dev/tcp/127.0.0.1/8443) 2>/dev/null; do sleep .1; done", timeout=30)
    status, body = visit(sandbox.get_host(8443))
    assert status == 200 and b"only-here" in body


def test_private_ports_need_the_traffic_token(create: Callable[..., Sandbox]) -> None:
    sandbox, other = create(network={"allow_public_traffic": False}), create()
    serve(sandbox)
    host = sandbox.get_host(8000)
    assert visit(host)[0] == 403
    assert visit(host, E2b_Traffic_Access_Token=other.traffic_access_token or "")[0] == 403
    status, body = visit(host, E2b_Traffic_Access_Token=sandbox.traffic_access_token or "")
    assert status == 200 and b"raffic" not in body, "the program sees nothing of the token"
    status, body = visit(sandbox.get_host(49983))
    assert (status, json.loads(body)["code"]) == (401, 401), "envd is there, and asks for its own token"


def test_metrics(create: Callable[..., Sandbox]) -> None:
    sandbox = create()
    newest = sandbox.get_metrics()[-1]
    assert newest.cpu_count >= 1 and 0 < newest.mem_used < newest.mem_total and 0 < newest.disk_used < newest.disk_total
    assert sandbox.get_metrics(start=newest.timestamp + timedelta(hours=1)) == []
    sandbox.kill()
    with pytest.raises(NotFoundException):
        sandbox.get_metrics()


def test_templates(create: Callable[..., Sandbox]) -> None:
    assert Template.exists("base") and not Template.exists("no-such-template")
    with pytest.raises(SandboxException, match=r"404: .*no-such-template"):
        create(template="no-such-template")


def test_what_is_not_here_is_refused_by_name(create: Callable[..., Sandbox]) -> None:
    sandbox = create()
    for call in (
        sandbox.pause, sandbox.create_snapshot, lambda: Sandbox.list_snapshots().next_items(),
        lambda: create(lifecycle={"on_timeout": "pause"}), lambda: Volume.create("data"), Volume.list,
    ):  # fmt: skip
        with pytest.raises(Exception, match=REFUSED):
            call()
    assert sandbox.is_running(), "it goes on"
