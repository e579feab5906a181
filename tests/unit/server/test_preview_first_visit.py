"""Ports that are published when they are first visited, names with the port in front, and E2B's clients behind them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from preview_rig import Answer, Program, Visitor, public
from server_harness import Harness, error_of, make
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bellglass.server.compat.e2b import app, routing
from bellglass.server.compat.e2b.routing import Destination, Serve

TRAFFIC = "E2b-Traffic-Access-Token"


def get(harness: Harness, label: str, *headers: str, target: str = "/") -> Answer:
    host = f"{label}.localhost"
    with Visitor(harness.previews_port, host) as visitor:
        return visitor.ask(target, *headers)


def e2b(harness: Harness, **body: Any) -> dict[str, Any]:
    headers = {"x-api-key": harness.key("p1")["secret"]}
    answer = harness.client(None).post("/compat/e2b/v2/sandboxes", json={"templateID": "base", **body}, headers=headers)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def listed(api: httpx2.Client, box: str) -> list[tuple[int, str]]:
    return [(item["port"], item["visibility"]) for item in api.get(f"/v1/sandboxes/{box}/ports").json()["items"]]


def test_nothing_is_published_by_itself_unless_told(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    told, untold = make(api, auto_publish="public")["id"], make(api)["id"]
    assert get(harness, f"{told}-{shown.port}").status == 200
    assert get(harness, f"{untold}-{shown.port}").status == 404
    assert (listed(api, told), listed(api, untold)) == ([(shown.port, "public")], [])
    assert error_of(api.post("/v1/sandboxes", json={"auto_publish": "all"}), 422)
    assert api.get(f"/v1/sandboxes/{told}").json()["auto_publish"] == "public"
    assert api.get(f"/v1/sandboxes/{untold}").json()["auto_publish"] is None


def test_only_what_listens_is_published(harness: Harness, api: httpx2.Client) -> None:
    box, port = make(api, auto_publish="public")["id"], closed_port()
    refused = get(harness, f"{box}-{port}")
    assert refused.status == 502 and json.loads(refused.body)["error"]["details"]["reason"] == "refused"
    assert listed(api, box) == []


def test_private_ones_need_a_token(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    box = make(api, auto_publish="private")["id"]
    assert get(harness, f"{box}-{shown.port}").status == 401
    assert listed(api, box) == [], "a stranger publishes nothing"
    token = harness.application._running().e2b.traffic(box)
    shown.heads.clear()
    assert get(harness, f"{box}-{shown.port}", f"{TRAFFIC}: {token}").status == 200
    assert listed(api, box) == [(shown.port, "private")]
    assert b"traffic" not in b"".join(shown.heads).lower(), "the program sees nothing of it"
    native = api.post(f"/v1/sandboxes/{box}/ports/{shown.port}/tokens", json={}).json()["token"]
    assert get(harness, f"{box}-{shown.port}", f"X-Bellglass-Token: {native}").status == 200


def test_programs_get_the_host_that_was_told(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    told = make(api, auto_publish="public", auto_publish_host="localhost:${PORT}")
    untold = make(api, auto_publish="public")
    for box, host in ((told, f"localhost:{shown.port}"), (untold, f"{untold['id']}-{shown.port}.localhost")):
        for _ in range(2):  # before it is in the list, and after
            shown.heads.clear()
            assert get(harness, f"{box['id']}-{shown.port}").status == 200
            [given] = [line for line in shown.heads[-1].lower().split(b"\r\n") if line.startswith(b"host:")]
            assert given == f"host: {host}".encode()
    ports = api.get(f"/v1/sandboxes/{told['id']}/ports").json()["items"]
    assert [port["host_header"] for port in ports] == [f"localhost:{shown.port}"]
    for wrong in ({"auto_publish_host": "localhost"}, {"auto_publish": "public", "auto_publish_host": "a\r\nb: c"}):
        error = error_of(api.post("/v1/sandboxes", json=wrong), 422)
        assert error["details"]["field"] == "auto_publish_host"


def test_what_was_taken_away_stays_away(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    box, other = make(api, auto_publish="public")["id"], make(api, auto_publish="public")["id"]
    path = f"/v1/sandboxes/{box}/ports/{shown.port}"
    assert get(harness, f"{box}-{shown.port}").status == 200
    for _ in range(2):
        assert api.delete(path).status_code == 204
        assert get(harness, f"{box}-{shown.port}").status == 404
    assert listed(api, box) == []
    assert api.delete(f"/v1/sandboxes/{other}/ports/{shown.port}").status_code == 204
    assert get(harness, f"{other}-{shown.port}").status == 404, "before it was ever visited"
    assert api.put(path, json={"visibility": "public"}).status_code == 200
    assert get(harness, f"{box}-{shown.port}").status == 200


def test_what_was_taken_away_takes_no_room(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    box = make(api, auto_publish="public")["id"]
    for port in range(1, 66):
        assert api.delete(f"/v1/sandboxes/{box}/ports/{port}").status_code == 204
    assert get(harness, f"{box}-{shown.port}").status == 200
    assert listed(api, box) == [(shown.port, "public")]


def test_the_port_may_stand_in_front(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    site = public(harness, api, shown.port)
    assert get(harness, f"{shown.port}-{site.sandbox_id}").status == 200
    assert get(harness, f"{shown.port + 1}-{site.sandbox_id}").status == 502
    assert get(harness, f"0{shown.port}-{site.sandbox_id}").status == 404
    assert get(harness, f"{shown.port}-{site.sandbox_id}-{shown.port}").status == 404
    page = get(harness, f"{shown.port + 1}-{site.sandbox_id}", "Accept: text/html")
    assert page.status == 404 and b"<h1>" in page.body
    private = site.publish(visibility="private")
    token = site.token()["token"]
    handed = get(harness, f"{shown.port}-{site.sandbox_id}", target=f"/x?_bellglass_token={token}")
    assert handed.header("location") == private["url"] + "/x", "there its cookie is good"


def test_refusals_of_e2bs_names_are_e2bs(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    box = e2b(harness, network={"allowPublicTraffic": False})
    id = box["sandboxID"]
    forbidden = get(harness, f"{shown.port}-{id}")
    assert (forbidden.status, json.loads(forbidden.body)["code"]) == (403, 403)
    assert get(harness, f"{shown.port}-{id}", f"{TRAFFIC}: {box['trafficAccessToken']}").status == 200
    other = e2b(harness, network={"allowPublicTraffic": False})
    for wrong in (other["trafficAccessToken"], box["envdAccessToken"], "x"):
        assert get(harness, f"{shown.port}-{id}", f"{TRAFFIC}: {wrong}").status == 403
    port = closed_port()
    said = get(harness, f"{port}-{id}", f"{TRAFFIC}: {box['trafficAccessToken']}")
    message = "The sandbox is running but port is not open"
    assert said.status == 502
    assert json.loads(said.body) == {"sandboxId": id, "message": message, "port": port, "code": 502}
    assert api.delete(f"/v1/sandboxes/{id}").status_code == 204
    for gone in (id, "sb" + "7" * 20):
        said = get(harness, f"{shown.port}-{gone}")
        assert said.status == 502
        assert json.loads(said.body) == {"sandboxId": gone, "message": "The sandbox was not found", "code": 502}
    assert get(harness, f"{shown.port}-{e2b(harness)['sandboxID']}").status == 200, "public unless told"


@contextlib.contextmanager
def served(harness: Harness, serve: Serve) -> Iterator[None]:
    """In place of what answers for envd."""
    ports: Any = app.PORTS
    before = dict(ports)
    ports[routing.ENVD_PORT] = serve
    try:
        yield
    finally:
        ports.clear()
        ports.update(before)


async def told(request: Request, target: Destination) -> Response:
    body = await request.body()
    seen = {"id": target.sandbox_id, "port": target.port, "path": request.url.path, "body": body.decode()}
    return Response(json.dumps(seen))


def test_envd_is_reached_by_name_and_by_headers(harness: Harness) -> None:
    box, other = e2b(harness)["sandboxID"], e2b(harness)["sandboxID"]
    with served(harness, told):
        for label, headers in ((f"49983-{box}", ()), (f"49983-{box}", (f"E2b-Sandbox-Id: {other}",))):
            with Visitor(harness.previews_port, f"{label}.localhost") as visitor:
                for _ in range(2):
                    asked = visitor.request("/process.Process/List?a=b", *headers, "Content-Length: 2", method="POST")
                    visitor.send(asked + b"{}")
                    said = visitor.read()
                    assert said.status == 200
                    seen = json.loads(said.body)
                    assert seen == {"id": box, "port": 49983, "path": "/process.Process/List", "body": "{}"}
        by_headers = {"e2b-sandbox-id": box, "e2b-sandbox-port": "49983"}
        for path in ("/health", "/compat/e2b/health", "/v1/health"):
            seen = harness.client(None).get(path, headers=by_headers).json()
            assert (seen["id"], seen["path"]) == (box, path.removeprefix("/compat/e2b"))
        gone = get(harness, "49983-sb" + "7" * 20)
        assert (gone.status, json.loads(gone.body)["message"]) == (502, "The sandbox was not found")


@pytest.mark.parametrize("named", ["e2b-sandbox-id", "E2b-Sandbox-Id, E2b-Sandbox-Port", "e2b-sandbox-port"])
def test_a_visitor_takes_nothing_away_that_says_which_port_is_meant(harness: Harness, named: str) -> None:
    """Else these names would lead to the whole API, which may listen for this host alone."""
    box = e2b(harness)["sandboxID"]
    with served(harness, told):
        for headers in ((), (f"Connection: {named}",)):
            for path in ("/v1/health", "/compat/e2b/v2/sandboxes"):
                said = get(harness, f"49983-{box}", *headers, target=path)
                assert said.status == 200, said.body
                seen = json.loads(said.body)
                assert (seen["id"], seen["port"], seen["path"]) == (box, 49983, path.removeprefix("/compat/e2b"))


def test_a_stream_of_envd_that_is_cut_looks_cut(harness: Harness) -> None:
    box = e2b(harness)["sandboxID"]

    async def cut(request: Request, target: Destination) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"one"
            await asyncio.sleep(0)
            raise ConnectionResetError("the sandbox died")

        return StreamingResponse(pieces())

    with served(harness, cut), socket.create_connection(("127.0.0.1", harness.previews_port), timeout=15) as wire:
        wire.sendall(f"GET / HTTP/1.1\r\nHost: 49983-{box}.localhost\r\n\r\n".encode())
        raw = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := wire.recv(65536):
                raw += piece
    assert b"one" in raw and not raw.endswith(b"0\r\n\r\n")
