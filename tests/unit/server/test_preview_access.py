"""Who may visit a published port: tokens, cookies, headers, their ends, and what of them reaches the program."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from preview_rig import Program, Site, program, public, silent
from server_harness import ADMIN, Harness, error_of, make


@pytest.fixture
def site(harness: Harness, api: httpx2.Client, shown: Program) -> Site:
    shown.heads.clear()
    return Site(harness, api, shown.port)


def cookie_of(value: str | None) -> str:
    assert value is not None
    return value.partition(";")[0]


def test_a_private_port_needs_a_token_and_the_program_sees_nothing_of_it(site: Site, shown: Program) -> None:
    site.record["url"].startswith(f"http://{site.host}:")
    for headers in ([], ["X-Bellglass-Token: bgp_" + "A" * 64], ["Cookie: bellglass=nonsense"]):
        refused = site.get("/", *headers)
        assert refused.status == 401 and json.loads(refused.body)["error"]["code"] == "unauthorized"
        assert refused.header("www-authenticate") is not None
    assert shown.heads == [], "a refused visitor touches the program"
    token = site.token()
    handed = site.get(f"/deep/page?a=1&_bellglass_token={token['token']}&b=%20")
    assert handed.status == 302 and handed.header("location") == site.record["url"] + "/deep/page?a=1&b=%20"
    assert (handed.header("referrer-policy"), handed.header("cache-control")) == ("no-referrer", "no-store")
    set_cookie = handed.header("set-cookie") or ""
    assert re.fullmatch(r"bellglass=bgp_[\w-]{64}; Path=/; Max-Age=\d+; HttpOnly; SameSite=Lax", set_cookie)
    cookie = cookie_of(set_cookie)
    assert shown.heads == []
    let_in = site.get("/deep/page?a=1&b=%20", f"Cookie: theme=dark; {cookie}; lang=en")
    assert let_in.status == 200
    by_header = site.get("/x", f"X-Bellglass-Token: {token['token']}", "Cookie: theme=dark")
    assert by_header.status == 200
    only_ours = site.get("/x", f"Cookie: {cookie}")
    assert only_ours.status == 200 and b"ookie" not in only_ours.body
    seen = b"".join(shown.heads)
    assert b"theme=dark; lang=en" in seen and b"GET /deep/page?a=1&b=%20 HTTP/1.1" in seen
    assert b"bgp_" not in seen and b"bellglass" not in seen.lower()


def test_a_post_or_a_websocket_with_the_token_in_its_url_is_let_in_at_once(site: Site, shown: Program) -> None:
    token = site.token()["token"]
    posted = site.get(f"/form?_bellglass_token={token}", "Content-Length: 0", method="POST")
    assert posted.status == 200 and b"POST /form HTTP/1.1" in posted.body
    socket_like = site.get(f"/ws?x=1&%5fbellglass_token={token}", "Connection: Upgrade", "Upgrade: websocket")
    assert socket_like.status == 200 and b"GET /ws?x=1 HTTP/1.1" in socket_like.body
    assert b"bgp_" not in b"".join(shown.heads)
    refused = site.get("/ws?_bellglass_token=bgp_x", "Connection: Upgrade", "Upgrade: websocket")
    assert refused.status == 401


def test_tokens_and_cookies_end_with_the_api_key_that_made_them(harness: Harness, shown: Program) -> None:
    made, kept = harness.key("p7"), harness.key("p7")
    site = Site(harness, harness.client(made["secret"]), shown.port)
    token = site.token()["token"]
    cookie = cookie_of(site.get(f"/?_bellglass_token={token}").header("set-cookie"))
    site.api = harness.client(kept["secret"])
    other = site.token()["token"]
    shows = ([f"X-Bellglass-Token: {token}"], [f"Cookie: {cookie}"], [f"X-Bellglass-Token: {other}"])
    assert [site.get("/", *headers).status for headers in shows] == [200, 200, 200]
    assert made["id"].encode() not in token.encode() + cookie.encode()

    def hold(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n1")
        connection.recv(1)

    with program(hold) as slow:
        streaming = Site(harness, site.api, slow.port)
        streaming.api = harness.client(made["secret"])
        with streaming.visitor() as cut, streaming.visitor() as goes_on:
            for visitor, api in ((cut, streaming.api), (goes_on, site.api)):
                streaming.api = api
                visitor.send(visitor.request("/", f"X-Bellglass-Token: {streaming.token()['token']}"))
                assert visitor.read_head()[0] == 200 and visitor.file.read(1) == b"1"
            assert harness.client(ADMIN).delete(f"/v1/keys/{made['id']}").status_code == 204
            assert cut.ended()
            assert not select.select([goes_on.connection], [], [], 0.2)[0], "it came with another key's token"
    assert [site.get("/", *headers).status for headers in shows] == [401, 401, 200]


def test_tokens_and_cookies_are_of_one_port_of_one_sandbox(site: Site, harness: Harness, api: httpx2.Client) -> None:
    with program() as other_program:
        others = [Site(harness, api, site.port), Site(harness, harness.project("p2"), other_program.port)]
        token = site.token()["token"]
        cookie = cookie_of(site.get(f"/?_bellglass_token={token}").header("set-cookie"))
        assert site.get("/", f"Cookie: {cookie}").status == 200
        assert site.get("/", f"X-Bellglass-Token: {token}").status == 200
        for other in others:
            assert other.get("/", f"Cookie: {cookie}").status == 401
            assert other.get("/", f"X-Bellglass-Token: {token}").status == 401
            assert other.get(f"/?_bellglass_token={token}").status == 401
        assert other_program.heads == []
    # A cookie is not a token: who copies it out of a browser has no link to pass on.
    value = cookie.partition("=")[2]
    assert site.get(f"/?_bellglass_token={value}").status == 401
    assert site.get("/", f"X-Bellglass-Token: {value}").status == 401
    assert site.get("/", f"Cookie: bellglass={token}").status == 401
    for at in range(4, len(token)):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        if at < len(token) - 1:  # the last character has bits that mean nothing
            assert site.get("/", f"X-Bellglass-Token: {changed}").status == 401


def test_a_token_for_single_use(site: Site) -> None:
    token = site.token(single_use=True)["token"]
    first = site.get(f"/a?_bellglass_token={token}")
    assert first.status == 302
    cookie = cookie_of(first.header("set-cookie"))
    assert site.get(f"/a?_bellglass_token={token}").status == 401
    assert site.get("/a", f"X-Bellglass-Token: {token}").status == 401
    assert site.get("/a", f"Cookie: {cookie}").status == 200
    again = site.get(f"/a?_bellglass_token={token}", f"Cookie: {cookie}")
    assert again.status == 302 and again.header("set-cookie") is None, "the link loaded again by who has the cookie"
    many = site.token(single_use=True)["token"]
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(site.get("/", f"X-Bellglass-Token: {many}").status))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] + [401] * 7


def test_tokens_end_by_themselves_and_cookies_with_them(site: Site) -> None:
    token = site.token(expires_in=1.5)["token"]
    handed = site.get(f"/?_bellglass_token={token}")
    assert int(re.search(r"Max-Age=(\d+)", handed.header("set-cookie") or "")[1]) <= 2
    cookie = cookie_of(handed.header("set-cookie"))
    assert site.get("/", f"Cookie: {cookie}").status == 200
    site.harness.until(lambda: site.get("/", f"X-Bellglass-Token: {token}").status == 401)
    assert site.get("/", f"Cookie: {cookie}").status == 401
    assert site.get(f"/?_bellglass_token={token}").status == 401


@pytest.mark.parametrize("how", ["expiry", "revoked", "unpublished", "publication's expiry", "made private", "deleted"])
def test_what_is_open_is_cut_when_its_right_ends(harness: Harness, api: httpx2.Client, how: str) -> None:
    def stream(connection, head) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        connection.recv(1)

    with program(stream) as shown:
        public = how == "made private"
        site = Site(harness, api, shown.port, visibility="public" if public else "private")
        if how == "publication's expiry":
            site.publish(expires_in=1)
        token = "" if public else site.token(**({"expires_in": 1} if how == "expiry" else {}))["token"]
        with site.visitor() as visitor:
            visitor.send(visitor.request("/", *([] if public else [f"X-Bellglass-Token: {token}"])))
            assert visitor.read_head()[0] == 200 and next(visitor.chunks()) == b"data: 1\n\n"
            assert visitor.file.readline() == b"\r\n"
            if how == "revoked":
                assert api.delete(site.path + "/tokens").status_code == 204
            elif how == "unpublished":
                assert api.delete(site.path).status_code == 204
            elif how == "made private":
                site.publish()
            elif how == "deleted":
                assert api.delete(f"/v1/sandboxes/{site.sandbox_id}").status_code == 204
                harness.end_dials(site.sandbox_id)
            began = time.monotonic()
            assert visitor.ended()
            assert time.monotonic() - began < 5
        gone = 404 if how in ("unpublished", "publication's expiry", "deleted") else 401
        refused = site.get("/", *([] if public else [f"X-Bellglass-Token: {token}"]))
        assert refused.status == gone
        assert len(shown.heads) == 1


def test_a_change_of_options_cuts_nothing_and_keeps_tokens(site: Site, shown: Program) -> None:
    token = site.token()["token"]
    created = site.record["created_at"]
    changed = site.publish(host_header="localhost:9000", frame_ancestors=["https://app.example.com", "'self'"])
    assert changed["created_at"] == created
    answered = site.get("/", f"X-Bellglass-Token: {token}")
    assert answered.status == 200 and b"Host: localhost:9000\r\n" in answered.body
    assert f"X-Forwarded-Host: {site.host}".encode() in answered.body
    assert answered.header("content-security-policy") == "frame-ancestors https://app.example.com 'self'"
    site.publish(visibility="public")
    assert site.get("/").status == 200
    assert site.get("/").status == 200
    moved = site.get(f"/?_bellglass_token={token}")
    assert (moved.status, moved.header("location")) == (302, f"http://{site.host}:{site.harness.previews_port}/")
    site.publish()
    assert site.get("/").status == 401 and site.get("/", f"X-Bellglass-Token: {token}").status == 200


def test_unpublished_and_unknown_names_answer_alike(site: Site, harness: Harness, api: httpx2.Client) -> None:
    unknown = "sb" + "a" * 20
    foreign = make(harness.project("p9"))["id"]
    mine = site.sandbox_id
    hosts = [
        f"{mine}-{site.port - 1}.localhost", f"{unknown}-{site.port}.localhost", f"{foreign}-80.localhost", "localhost",
        "127.0.0.1", "127.9.9.9", "[::1]", "example.com", f"{site.host}.evil.test", f"{mine}-0{site.port}.localhost",
        f"{mine}-99999.localhost", f"x.{site.host}", "169.254.169.254",
    ]  # fmt: skip
    token = site.token()["token"]
    bodies = set()
    for host in hosts:
        answered = site.get("/v1/health", f"X-Bellglass-Token: {token}", host=host)
        assert answered.status == 404, host
        bodies.add(answered.body)
    assert len(bodies) == 1
    for host in (site.host, site.host.upper(), f"{site.host}:7380", f"{site.host}:443"):
        assert site.get("/", f"X-Bellglass-Token: {token}", host=host).status == 200


def test_an_own_address(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    site = Site(harness, api, shown.port, own_address=True)
    address = site.record["address"]
    assert (
        re.fullmatch(r"127\.\d+\.\d+\.\d+", address)
        and site.record["url"] == f"http://{address}:{harness.previews_port}"
    )
    token = site.token()
    with httpx2.Client(trust_env=False, follow_redirects=True) as browser:
        assert browser.get(site.record["url"]).status_code == 401
        assert browser.get(token["url"]).status_code == 200
        assert browser.get(site.record["url"] + "/again").status_code == 200
        assert site.get("/", f"X-Bellglass-Token: {token['token']}").status == 404, "it has no name besides"
        assert site.publish(own_address=True)["address"] == address
        site.publish()
        assert browser.get(site.record["url"]).status_code == 404, "over the connection that was open"
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(site.record["url"], trust_env=False)


def test_an_own_address_that_can_not_be_had(
    harness: Harness, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch, shown: Program
) -> None:
    def taken(address: str, port: int) -> socket.socket:
        raise OSError(98, f"{address} is taken")

    site = Site(harness, api, shown.port)
    monkeypatch.setattr(harness.application.previews, "_bind_address", taken)
    error_of(api.put(site.path, json={"own_address": True}), 501, "not_supported")
    error_of(api.get(site.path), 404)
    monkeypatch.undo()
    assert site.publish(own_address=True)["address"]


def test_an_own_address_under_a_listener_on_all_addresses(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "data", {"previews.listen": "0.0.0.0"}).start()
    try:
        with program() as shown:
            site = Site(harness, harness.project("p1"), shown.port, visibility="public", own_address=True)
            assert httpx2.get(site.record["url"], trust_env=False).status_code == 200
    finally:
        harness.stop()


def test_when_all_connections_are_taken_idle_ones_give_way_and_busy_ones_do_not(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "data", {"previews.max_connections": 8}).start()
    try:
        with program(silent) as stuck, program() as shown, ExitStack() as owned:
            api = harness.project("p1")
            busy, other = public(harness, api, stuck.port), public(harness, harness.project("p2"), stuck.port)
            site = public(harness, harness.project("p3"), shown.port)
            with ExitStack() as waiting_ones:
                idle = [waiting_ones.enter_context(site.visitor()) for _ in range(20)]
                assert idle[-1].ask("/").status == 200
                assert idle[0].ended(), "the oldest one that waits made room"
            # One after the other: who has asked for nothing yet gives way to who comes.
            waiting = []
            for number, each in enumerate([busy, other] * 4, start=1):
                waiting.append(owned.enter_context(each.visitor()))
                waiting[-1].send(waiting[-1].request("/"))
                harness.until(lambda number=number: len(stuck.heads) == number)
            refused = site.visitor()
            with refused:
                assert refused.read().status == 503
            waiting.pop().connection.shutdown(socket.SHUT_RDWR)
            harness.until(lambda: site.get("/").status == 200)
    finally:
        harness.stop()


def test_ends_of_the_sandbox(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    site = Site(harness, api, shown.port, visibility="public")
    assert site.get("/").status == 200
    harness.end(site.sandbox_id, "lifetime")
    harness.until(lambda: api.get(f"/v1/sandboxes/{site.sandbox_id}").json()["state"] == "ended")
    assert error_of(api.put(site.path, json={}), 410, "sandbox_gone")
    assert api.get(site.path).status_code == 200
    with_page = site.get("/", "Accept: text/html,*/*")
    assert with_page.status == 410 and b"<h1>410 Gone" in with_page.body


def test_a_server_that_is_restarted_knows_tokens_and_spent_ones(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    harness = Harness(tmp_path / "data", {"previews.port": port}).start()
    with program() as shown:
        site = Site(harness, harness.project("p1"), shown.port)
        token, once = site.token()["token"], site.token(single_use=True)["token"]
        cookie = cookie_of(site.get(f"/?_bellglass_token={token}").header("set-cookie"))
        assert site.get("/", f"X-Bellglass-Token: {once}").status == 200
        harness.stop()
        again = harness.again()
        site.harness = again
        try:
            assert site.get("/", f"Cookie: {cookie}").status == 200
            assert site.get("/", f"X-Bellglass-Token: {token}").status == 200
            assert site.get("/", f"X-Bellglass-Token: {once}").status == 401
        finally:
            again.stop()


REFUSED = [
    ({"visibility": "open"}, "visibility"), ({"expires_in": 0}, "expires_in"), ({"expires_in": "soon"}, "expires_in"),
    ({"host_header": "a b"}, "host_header"), ({"host_header": "a\r\nX: y"}, "host_header"),
    ({"host_header": ""}, "host_header"), ({"ttl": 5}, "ttl"), ({"own_address": 1}, "own_address"),
    ({"frame_ancestors": []}, "frame_ancestors"), ({"frame_ancestors": ["'none'", "'self'"]}, "frame_ancestors"),
    ({"frame_ancestors": ["https://a.test; script-src *"]}, "frame_ancestors"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "field"), REFUSED)
def test_what_is_refused_names_the_field(site: Site, body: dict, field: str) -> None:
    site.publish(expires_in="1h", host_header="[::1]:80", frame_ancestors=["'none'"])
    error = error_of(site.api.put(site.path, json=body), 422)
    assert error["details"]["field"] == field
    assert site.api.get(site.path).json()["host_header"] == "[::1]:80"


def test_the_api_of_ports(site: Site, harness: Harness) -> None:
    api, other = site.api, harness.project("p2")
    assert [item["port"] for item in api.get(site.path.rpartition("/")[0]).json()["items"]] == [site.port]
    for number in (0, 65536, -1):
        assert api.put(f"{site.path.rpartition('/')[0]}/{number}", json={}).status_code == 422
    for method, path, body in (
        ("PUT", site.path, {}), ("GET", site.path, None), ("DELETE", site.path, None),
        ("GET", site.path.rpartition("/")[0], None), ("POST", site.path + "/tokens", {}),
        ("DELETE", site.path + "/tokens", None),
    ):  # fmt: skip
        error_of(other.request(method, path, json=body), 404, "not_found")
    assert site.get("/", f"X-Bellglass-Token: {site.token()['token']}").status == 200
    unpublished = site.path.replace(str(site.port), "81")
    error_of(api.get(unpublished), 404, "not_found")
    error_of(api.post(unpublished + "/tokens", json={}), 404, "not_found")
    assert api.delete(unpublished).status_code == 204
    error_of(api.post(site.path + "/tokens", json={"expires_in": "31d"}), 422)
    site.publish(visibility="public")
    error_of(api.post(site.path + "/tokens", json={}), 409)
    assert api.delete(site.path).status_code == 204 and api.delete(site.path).status_code == 204
    kinds = [kind for (kind,) in harness.database("SELECT type FROM events WHERE type LIKE 'port.%' ORDER BY seq")]
    assert kinds[-1] == "port.unpublished" and "port.published" in kinds
