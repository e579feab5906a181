"""What of a sandbox's bytes reaches the server, and under whose name. The server here writes down what it was asked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from identity_rig import ANSWER, HOST, OURS, THEIRS, TOKEN, on_the_nodes_loop, rig

from bellglass.datadir import DataDir
from bellglass.link import credential
from bellglass.node.net import identity, visit
from bellglass.node.net.identity import MARKER


@pytest.fixture(autouse=True)
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are not counted, but where a test is about that; and a client that keeps its end open is left at once."""
    monkeypatch.setattr(identity, "BURST", 1e6)
    monkeypatch.setattr(visit, "LINGER_S", 0.05)


@on_the_nodes_loop
async def test_who_calls_is_known_by_the_listener(tmp_path: Path) -> None:
    async with rig(tmp_path) as here:
        for door in (here.ours, here.theirs, here.ours):
            assert await door.ask(b"GET /v1/me?a=b HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n") == ANSWER
        assert here.server.callers() == [OURS, THEIRS, OURS]
        first = here.server.asked[0][0].split(b"\r\n")
        assert first[0] == b"GET /v1/me?a=b HTTP/1.1"
        assert [line.partition(b":")[0] for line in first[1:-2]] == [b"host", b"authorization", b"connection"]


@on_the_nodes_loop
async def test_only_what_the_api_needs_is_passed_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as here:
        forged = (
            b"X-Bellglass-Sandbox: "
            + THEIRS.sandbox_id.encode()
            + b"\r\nX-Forwarded-For: 1.2.3.4\r\nForwarded: for=1\r\n"
            b"Cookie: a=b\r\nX-Request-Id: forged\r\nIdempotency-Key: k\r\nTE: trailers\r\n"
            b"Connection: keep-alive, upgrade\r\nX-Bellglass-Token: t\r\nProxy-Authorization: Bearer x\r\n"
        )
        body = b'{"visibility":"private"}'
        request = b"PUT /v1/sandboxes/x/ports/80 HTTP/1.1\r\n" + HOST + TOKEN + forged
        request += b"Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: 24\r\n\r\n" + body
        assert await here.ours.ask(request) == ANSWER
        head, sent = here.server.asked[0]
        names = [line.partition(b":")[0] for line in head.split(b"\r\n")[1:-2]]
        assert names == [b"host", b"authorization", b"connection", b"accept", b"content-type", b"content-length"]
        assert sent == body and here.server.callers() == [OURS]
        upgrade = b"GET /v1/me HTTP/1.1\r\n" + HOST + TOKEN + forged + b"Upgrade: websocket\r\n\r\n"
        assert await here.ours.ask(upgrade) == ANSWER
        names = [line.partition(b":")[0] for line in here.server.asked[1][0].split(b"\r\n")[1:-2]]
        assert names == [b"host", b"authorization", b"connection"]


@on_the_nodes_loop
async def test_one_request_of_a_connection_is_looked_at(tmp_path: Path) -> None:
    """Whatever follows it reaches nobody: not a second request, not one hidden in a body that is too long or short."""
    second = b"DELETE /v1/smuggled HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n"
    async with rig(tmp_path) as here:
        get = b"GET /v1/me HTTP/1.1\r\n" + HOST + TOKEN
        assert await here.ours.ask(get + b"\r\n" + second * 3) == ANSWER
        assert await here.ours.ask(get + b"Content-Length: 0\r\n\r\n" + second) == ANSWER
        put = b"PUT /v1/x HTTP/1.1\r\n" + HOST + TOKEN + b"Content-Length: %d\r\n\r\n"
        assert await here.ours.ask(put % len(second) + second + second) == ANSWER
        assert [body for _, body in here.server.asked] == [b"", b"", second]
        await here.refused(put % (len(second) + 1) + second, 400, end=True)
        assert not any(b"smuggled" in head for head, _ in here.server.asked)


NOT_HTTP = (
    TOKEN + b"Content-Length: 0\r\nContent-Length: 0\r\n",
    TOKEN + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    TOKEN + b"Transfer-Encoding: chunked\r\n",
    TOKEN + b"Transfer-Encoding: xchunked\r\n",
    TOKEN + b"Transfer-Encoding: chunked, chunked\r\n",
    TOKEN + b"Content-Length: +5\r\n",
    TOKEN + b"Content-Length: 0x5\r\n",
    TOKEN + b"Content-Length: -1\r\n",
    TOKEN + b"Content-Length : 0\r\n",
    TOKEN + b" folded: yes\r\n",
    TOKEN + b"X: a\nY: b\r\n",
    TOKEN + b"X: a\rY: b\r\n",
    TOKEN + b"X: \0\r\n",
    TOKEN + b"Host: 198.18.0.1\r\n",
    TOKEN + b"Host: evil.example\r\n",
    TOKEN + b"no field\r\n",
    TOKEN + b": no name\r\n",
    TOKEN + b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    TOKEN + b"Upgrade: h2c\r\n",
    TOKEN + b"Connection: content-length\r\n",
    TOKEN + b"A: b\r\n" * 300,
    TOKEN + b"A: " + b"b" * 20_000 + b"\r\n",
)


@on_the_nodes_loop
async def test_what_could_be_read_in_two_ways_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as here:
        for fields in NOT_HTTP:
            await here.refused(b"GET /v1/me HTTP/1.1\r\n" + HOST + fields + b"\r\n", 400)
        for host in (b"", b"Host: \r\n", b"Host: localhost\r\n", b"Host: 198.18.0.1:81\r\n", b"Host: 198.18.0.1.\r\n"):
            await here.refused(b"GET /v1/me HTTP/1.1\r\n" + host + TOKEN + b"\r\n", 400)
        for host in (b"Host: 198.18.0.1:80\r\n", b"hOST:198.18.0.1\r\n"):
            assert await here.ours.ask(b"GET /v1/me HTTP/1.1\r\n" + host + TOKEN + b"\r\n") == ANSWER
        for line in (
            b"GET  /v1/me HTTP/1.1", b"GET /v1/me HTTP/2.0", b"GET /v1/me", b"GET /v1/me HTTP/1.1 x", b"\x16\x03\x01",
            b"PRI * HTTP/2.0", b"CONNECT 198.18.0.1:80 HTTP/1.1", b"GET http://evil.example/v1/me HTTP/1.1",
            b"GET https://198.18.0.1/v1/me HTTP/1.1", b"GET v1/me HTTP/1.1", b"G\xc3\xa4T /v1/me HTTP/1.1", b"\r\n",
        ):  # fmt: skip
            await here.refused(line + b"\r\n" + HOST + TOKEN + b"\r\n", 400, end=True)
        absolute = b"GET http://198.18.0.1/v1/me HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n"
        assert await here.ours.ask(absolute) == ANSWER
        assert here.server.asked[-1][0].startswith(b"GET /v1/me HTTP/1.1\r\n")


@on_the_nodes_loop
async def test_paths_of_the_api_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as here:
        for path in (
            b"/", b"/v1", b"/v1/", b"/v1/sandboxes/../keys", b"/v1/./me", b"/v1//me", b"//v1/me", b"/v1/me/",
            b"/v1/%6de", b"/v1/sandboxes%2fx", b"/v1/x%00", b"/v1/x%2e%2e/me", b"/v1/..", b"/v1\\me", b"/v1/me;x=1",
            b"/v1/m\xc3\xa4", b"/v2/me", b"/v1/me#x", b"/v1/me?\xff", b"/v1/@", b"*",
        ):  # fmt: skip
            await here.refused(b"GET " + path + b" HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n", 400)
        for path in (b"/v1/me", b"/v1/openapi.json", b"/v1/sandboxes/x/ports/80", b"/v1/me?a=%2e%2e&b=/../"):
            assert await here.ours.ask(b"GET " + path + b" HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n") == ANSWER
            assert here.server.asked[-1][0].startswith(b"GET " + path + b" HTTP/1.1\r\n")
        for method in (b"OPTIONS", b"TRACE", b"BREW", b"get"):
            await here.refused(method + b" /v1/me HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n", 405)


@on_the_nodes_loop
async def test_the_token_is_asked_for(tmp_path: Path) -> None:
    async with rig(tmp_path) as here:
        word = credential.make("secret", "inst", THEIRS, time.time()).encode()
        for fields in (
            b"", b"Authorization: Bearer\r\n", b"Authorization: Bearer x\r\n", TOKEN.replace(b"Bearer ", b""),
            TOKEN.replace(b"Bearer", b"Basic"), TOKEN + TOKEN, b"Authorization: Bearer " + word + b"\r\n",
            TOKEN.strip() + b"x\r\n", b"Proxy-" + TOKEN, b"X-" + TOKEN, b"Cookie: token=" + MARKER.encode() + b"\r\n",
        ):  # fmt: skip
            answer = await here.refused(b"GET /v1/me HTTP/1.1\r\n" + HOST + fields + b"\r\n", 401)
            assert b"www-authenticate: Bearer" in answer
        assert await here.ours.ask(b"GET /v1/me HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n") == ANSWER


@on_the_nodes_loop
async def test_bounds_of_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path) as here:
        put = b"PUT /v1/x HTTP/1.1\r\n" + HOST + TOKEN + b"Content-Length: %d\r\n\r\n"
        most = visit.MAX_BODY_BYTES
        assert await here.ours.ask(put % most + b"x" * most) == ANSWER
        assert here.server.asked[-1][1] == b"x" * most
        await here.refused(put % (most + 1) + b"x", 413)
        await here.refused(put % 10**17 + b"x", 413)
        expecting = put.replace(b"Content-Length", b"Expect: 100-continue\r\nContent-Length")
        reader, writer = await asyncio.open_connection("127.0.0.1", here.ours.port)
        writer.write(expecting % 2)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert await reader.read() == ANSWER
        writer.close()
        old = (expecting % 2).replace(b"HTTP/1.1", b"HTTP/1.0")  # it would take a 100 for the answer
        assert await here.ours.ask(old + b"{}") == ANSWER
        reader, writer = await asyncio.open_connection("127.0.0.1", here.ours.port)
        writer.write(old)
        await writer.drain()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.3)
        writer.write(b"{}")
        assert await reader.read() == ANSWER
        writer.close()
        monkeypatch.setattr(visit, "HEAD_S", 0.2)
        monkeypatch.setattr(visit, "BODY_S", 0.2)
        await here.refused(b"GET /v1/me HTTP/1.1\r\n", 400)
        await here.refused(put % 100 + b"x", 400)
        assert await here.ours.ask(b"", end=True) == b""


@on_the_nodes_loop
async def test_a_server_that_is_away_or_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get = b"GET /v1/me HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n"
    async with rig(tmp_path) as here:
        assert await here.ours.ask(get) == ANSWER
        here.server.answer = b""
        answer = await here.ours.ask(get)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer
        monkeypatch.setattr(visit, "ANSWER_S", 0.2)
        here.server.hold = asyncio.Event()
        assert (await here.ours.ask(get)).startswith(b"HTTP/1.1 503 ")
        DataDir(tmp_path).identity_socket.unlink()
        assert (await here.ours.ask(get)).startswith(b"HTTP/1.1 503 ")


@on_the_nodes_loop
async def test_half_an_answer_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get = b"GET /v1/me HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n"
    async with rig(tmp_path) as here:
        here.server.answer = half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"
        assert await here.ours.ask(get) == half


@on_the_nodes_loop
async def test_nothing_is_left_of_a_sandbox_that_ended(tmp_path: Path) -> None:
    get = b"GET /v1/me HTTP/1.1\r\n" + HOST + TOKEN + b"\r\n"
    async with rig(tmp_path) as here:
        here.server.hold = asyncio.Event()
        asking: asyncio.Task[Any] = asyncio.create_task(here.ours.ask(get))
        async with asyncio.timeout(10):
            while not here.server.asked:
                await asyncio.sleep(0.01)
        await here.identities.detach(OURS.sandbox_id)
        try:
            assert await asking == b""
        except ConnectionResetError:
            pass
        with pytest.raises(ConnectionRefusedError):
            await here.ours.ask(get)
        assert not [task for task in asyncio.all_tasks() if OURS.sandbox_id in task.get_name()]
        await here.identities.detach(OURS.sandbox_id)
        here.server.hold.set()
        assert await here.theirs.ask(get) == ANSWER
