"""Visitors against each other and against what they were given: shares, shorter times, tokens in URLs, odd headers."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from preview_rig import WAIT_S, Site, answer, program, public, silent
from server_harness import Harness


def begins(connection: socket.socket, head: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nbegun")
    silent(connection, head)


def test_programs_of_one_project_that_never_answer_leave_room_for_others(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "data", {"previews.max_connections": 8}).start()
    try:
        with program(silent) as stuck, program() as shown, ExitStack() as owned:
            api = harness.project("p1")
            greedy, same = public(harness, api, stuck.port), public(harness, api, shown.port)
            other = public(harness, harness.project("p2"), shown.port)
            waiting = [owned.enter_context(greedy.visitor()) for _ in range(4)]
            for visitor in waiting:
                visitor.send(visitor.request("/"))
            harness.until(lambda: len(stuck.heads) == 4)
            assert same.get("/").status == 429
            assert other.get("/").status == 200
            waiting.pop().connection.shutdown(socket.SHUT_RDWR)
            harness.until(lambda: same.get("/").status == 200)
    finally:
        harness.stop()


@pytest.mark.parametrize("visibility", ["public", "private"])
def test_a_port_that_is_published_anew_for_a_shorter_time_ends_then(
    harness: Harness, api: httpx2.Client, visibility: str
) -> None:
    with program(begins) as made:
        site = Site(harness, api, made.port, visibility=visibility, expires_in="1h")
        shown = [] if visibility == "public" else [f"X-Bellglass-Token: {site.token(expires_in='30m')['token']}"]
        with site.visitor() as visitor:
            visitor.send(visitor.request("/", *shown))
            visitor.read_head()
            began = time.monotonic()
            site.publish(visibility=visibility, expires_in="1s")
            visitor.file.read()
            assert time.monotonic() - began < WAIT_S


def test_a_longer_time_is_for_those_too_that_are_there(harness: Harness, api: httpx2.Client) -> None:
    with program(begins) as made:
        site = public(harness, api, made.port, expires_in="1s")
        with site.visitor() as visitor:
            visitor.send(visitor.request("/"))
            visitor.read_head()
            site.publish(visibility="public")
            visitor.connection.settimeout(2.5)
            visitor.file.readline()
            visitor.file.read(7)
            with pytest.raises(TimeoutError):
                visitor.file.read(1)


def test_a_token_in_the_url_of_a_public_port_or_in_a_referer_does_not_reach_the_program(
    harness: Harness, api: httpx2.Client
) -> None:
    with program() as made:
        site = Site(harness, api, made.port)
        token = site.token()["token"]
        page = site.get(
            "/", f"X-Bellglass-Token: {token}", f"Referer: http://{site.host}/a?x=1&_bellglass_%74oken={token}"
        )
        assert page.status == 200 and f"Referer: http://{site.host}/a\r\n".encode() in page.body
        assert token.encode() not in page.body
        kept = site.get("/", f"X-Bellglass-Token: {token}", "Referer: http://other.example/?q=1")
        assert b"Referer: http://other.example/?q=1\r\n" in kept.body
        site.publish(visibility="public")
        moved = site.get(f"/b?_bellglass_token={token}&y=1")
        assert moved.status == 302 and (moved.header("location") or "").endswith("/b?y=1")
        assert moved.header("set-cookie") is None and moved.header("referrer-policy") == "no-referrer"


def test_a_visitor_can_not_take_our_headers_away(harness: Harness, api: httpx2.Client) -> None:
    with program() as made:
        site = public(harness, api, made.port)
        body = site.get("/", "Connection: X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host, X-Own", "X-Own: 1").body
        assert b"X-Own" not in body
        for name in (
            b"X-Forwarded-For: 127.0.0.1",
            b"X-Forwarded-Proto: http",
            b"X-Forwarded-Host: " + site.host.encode(),
        ):
            assert name in body


def test_an_answer_without_a_body_has_one_framing_at_most(harness: Harness, api: httpx2.Client) -> None:
    both = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\nContent-Length: x\r\n\r\n"
    with program(answer(both)) as made:
        answered = public(harness, api, made.port).get("/", method="HEAD")
        names = [name.lower() for name, _ in answered.headers]
        assert answered.status == 200 and "content-length" not in names and "transfer-encoding" not in names
    with program(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n")) as made:
        assert public(harness, api, made.port).get("/", method="HEAD").header("content-length") == "7"
