"""WebSockets of the API: refusals before and after the handshake, both directions at once, back-pressure, and ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from socket import SHUT_WR
from typing import Any

import pytest
import websockets.sync.client as foreign
from server_harness import Harness
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bellglass.errors import (
    BellglassError,
    ConnectionFailed,
    InvalidRequest,
    NotFound,
    SandboxGone,
    StreamInterrupted,
    Unauthorized,
)
from bellglass.sdk import _async, _sync
from bellglass.sdk._async.websocket import AsyncWebSocket
from bellglass.sdk._config import resolve
from bellglass.sdk._sync.websocket import WebSocket
from bellglass.server.http.websockets import Socket, SocketClosed, SocketRoute

ENDS: list[int] = []
SENT: list[int] = []


async def echo(socket: Socket, name: str) -> None:
    """Says what it is told; some words it obeys."""
    if socket.text("refuse"):
        raise SandboxGone("gone before", details={"reason": "lifetime"})
    said = f"{name} {socket.integer('offset', 7)} {socket.flag('on')}"
    await socket.accept()
    await socket.send(said)
    try:
        while True:
            message = await socket.receive()
            if message == "gone":
                raise SandboxGone("gone after", details={"reason": "idle"})
            if message == "fault":
                raise ValueError("a fault of ours")
            if message == "bye":
                return
            if message == "flood":
                for number in range(1000):
                    await socket.send(b"x" * 100_000)
                    SENT.append(number)
            await socket.send(message)
    except SocketClosed as closed:
        ENDS.append(closed.code)
        raise


async def sink(socket: Socket) -> None:
    """Reads nothing."""
    await socket.accept()
    await asyncio.sleep(3600)


@pytest.fixture(scope="module")
def url(harness: Harness) -> Iterator[str]:
    routes = harness.application.fastapi.router.routes
    added = [
        SocketRoute("/v1/test/{name}", "test.echo", echo, dict.fromkeys(("offset", "on", "refuse"), ""), ()),
        SocketRoute("/v1/sink", "test.sink", sink, {}, ()),
    ]
    routes.extend(added)
    yield harness.url
    for route in added:
        routes.remove(route)


@pytest.fixture
def connect(harness: Harness, url: str, api: Any) -> Iterator[Callable[..., WebSocket]]:
    transport = _sync.transport.Transport(resolve(url, key_of(harness)))
    opened: list[WebSocket] = []

    def make(where: str) -> WebSocket:
        opened.append(WebSocket.connect(transport, where))
        return opened[-1]

    yield make
    for socket in opened:
        socket.close()
    transport.close()


def key_of(harness: Harness, project: str = "p1") -> str:
    return harness.project(project).headers["authorization"].removeprefix("Bearer ")


def test_both_kinds_both_ways(connect: Callable[..., WebSocket]) -> None:
    socket = connect("/v1/test/me?offset=12&on=true")
    assert socket.receive() == "me 12 True"
    for message in ("", "ü\U0001f600", b"", b"\x00\xff" * 70, b"b" * 65536, "t" * 400_000):
        socket.send(message)
        assert socket.receive() == message
    socket.send("bye")
    assert socket.receive() is None and socket.close_code == 1000
    assert socket.receive() is None


def test_the_async_form(harness: Harness, url: str) -> None:
    async def scenario() -> None:
        transport = _async.transport.AsyncTransport(resolve(url, key_of(harness)))
        async with await AsyncWebSocket.connect(transport, "/v1/test/me") as socket:
            assert await socket.receive() == "me 7 False"
            await asyncio.gather(*(socket.send(f"{number}" * 1000) for number in range(50)))
            assert [await socket.receive() for _ in range(50)] == [f"{number}" * 1000 for number in range(50)]
            waiting = asyncio.create_task(socket.receive())
            await asyncio.sleep(0)
            await socket.aclose()
            assert await asyncio.wait_for(waiting, 10) is None
        await transport.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("/v1/test/me?refuse=1", SandboxGone),
        ("/v1/test/me?ofset=1", InvalidRequest),
        ("/v1/test/me?offset=-1", InvalidRequest),
        ("/v1/test/me?on=perhaps", InvalidRequest),
        ("/v1/nothing", NotFound),
        ("/v1/sandboxes", NotFound),
    ],
)
def test_refused_before_the_handshake(
    connect: Callable[..., WebSocket],
    where: str,
    error: type[BellglassError],
    harness: Harness,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(error) as caught:
        connect(where)
    harness.run(asyncio.sleep(0))  # what was begun with the answer is over
    assert not [record for record in caplog.records if record.name == "bellglass.websockets"], "it is no fault of ours"
    assert caught.value.request_id and (error is not SandboxGone or caught.value.details == {"reason": "lifetime"})


def test_keys_are_asked_for(harness: Harness, url: str, caplog: pytest.LogCaptureFixture) -> None:
    address = url.replace("http", "ws") + "/v1/test/me"
    good = {"Authorization": f"Bearer {key_of(harness)}"}
    with foreign.connect(address, additional_headers=good) as socket:
        assert socket.recv() == "me 7 False"
    for headers, status in (({}, 401), ({"Authorization": "Bearer no"}, 401)):
        with pytest.raises(InvalidStatus) as caught:
            foreign.connect(address, additional_headers=headers)
        assert caught.value.response.status_code == status
        assert b'"error"' in caught.value.response.body
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []  # not of ours


def test_errors_after_the_handshake(harness: Harness, url: str, connect: Callable[..., WebSocket]) -> None:
    socket = connect("/v1/test/me")
    socket.receive()
    socket.send("gone")
    for _ in range(2):
        with pytest.raises(SandboxGone) as caught:
            socket.receive()
        assert caught.value.details == {"reason": "idle"} and caught.value.request_id
    assert socket.close_code == 4410
    address = url.replace("http", "ws") + "/v1/test/me"
    with foreign.connect(address, additional_headers={"Authorization": f"Bearer {key_of(harness)}"}) as other:
        other.recv()
        other.send("fault")
        assert '"code":"internal"' in str(other.recv())
        with pytest.raises(ConnectionClosed):
            other.recv()
        assert (other.close_code, other.close_reason) == (4500, "internal")


def test_a_revoked_key_ends_it(harness: Harness, url: str) -> None:
    made = harness.admin.post("/v1/keys", json={"project": "revoked"}).json()
    transport = _sync.transport.Transport(resolve(url, made["secret"]))
    with WebSocket.connect(transport, "/v1/test/me") as socket:
        assert socket.receive() == "me 7 False"
        assert harness.admin.delete(f"/v1/keys/{made['id']}").status_code == 204
        with pytest.raises(Unauthorized, match="revoked"):
            socket.receive()
    transport.close()


def test_the_route_sees_how_it_ended(connect: Callable[..., WebSocket], harness: Harness) -> None:
    ENDS.clear()
    clean, dropped = connect("/v1/test/a"), connect("/v1/test/b")
    clean.receive(), dropped.receive()
    clean.close()
    harness.until(lambda: ENDS == [1000])
    dropped._stream.get_extra_info("socket").close()
    harness.until(lambda: len(ENDS) == 2 and ENDS[1] in (1005, 1006))


def test_a_slow_client_is_waited_for(connect: Callable[..., WebSocket], harness: Harness) -> None:
    SENT.clear()
    socket = connect("/v1/test/me")
    socket.receive()
    socket.send("flood")
    assert socket.receive() == b"x" * 100_000
    seen = -1
    while seen != len(SENT):  # until it goes no further by itself
        seen = len(SENT)
        threading.Event().wait(0.3)
    assert seen < 300, "100 MB lie in the server"
    assert all(socket.receive() == b"x" * 100_000 for _ in range(999))
    assert socket.receive() == "flood"


@pytest.mark.parametrize("reads", [True, False])
def test_who_has_hung_up_keeps_no_connection(reads: bool, connect: Callable[..., WebSocket], harness: Harness) -> None:
    """What was under way is there for a client that reads it; one that does not would hold it for a minute."""
    counted = harness.server.config.http_protocol_class.keywords["counted"]  # type: ignore[union-attr]
    before = len(counted.open)
    SENT.clear()
    socket = connect("/v1/test/me")
    socket.receive()
    socket.send("flood")
    seen = -1
    while seen != len(SENT):
        seen = len(SENT)
        threading.Event().wait(0.3)
    raw = socket._stream.get_extra_info("socket")
    raw.shutdown(SHUT_WR)
    came = 0
    while reads and (data := raw.recv(1 << 20)):
        came += len(data)
    assert came >= seen * 100_000 if reads else len(counted.open) == before + 1
    harness.until(lambda: len(counted.open) == before, 15)


def test_a_busy_route_is_not_written_full(connect: Callable[..., WebSocket]) -> None:
    socket = connect("/v1/sink")
    taken = 0

    def pour() -> None:
        nonlocal taken
        while True:
            socket.send(b"x" * 100_000)
            taken += 1

    with ThreadPoolExecutor(1) as pool:
        pouring = pool.submit(pour)
        seen = -1
        while seen != taken:
            seen = taken
            threading.Event().wait(0.3)
        assert 0 < seen < 300
        began = time.monotonic()
        socket.close()
        assert time.monotonic() - began < 20, "it waits for the one who sends, and that one for the route"
        with pytest.raises(StreamInterrupted):
            pouring.result(20)


def test_two_threads(connect: Callable[..., WebSocket]) -> None:
    socket = connect("/v1/test/me")
    socket.receive()
    messages = [f"{number}:" + "x" * (number % 700) for number in range(3000)]
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: [socket.send(message) for message in messages])
        assert [socket.receive() for _ in messages] == messages
        sending.result(20)


def test_too_long_a_message_ends_it(harness: Harness, url: str) -> None:
    address = url.replace("http", "ws") + "/v1/test/me"
    with foreign.connect(address, additional_headers={"Authorization": f"Bearer {key_of(harness)}"}) as socket:
        socket.recv()
        socket.send(b"x" * (1 << 20))
        assert len(socket.recv()) == 1 << 20
        with pytest.raises(ConnectionClosed):
            socket.send(b"x" * ((1 << 20) + 1))
            socket.recv()
        assert socket.close_code == 1009


def test_connections_are_counted_to_their_end(own_harness: Harness) -> None:
    routes = own_harness.application.fastapi.router.routes
    routes.append(SocketRoute("/v1/test/{name}", "test.echo", echo, {}, ()))
    transport = _sync.transport.Transport(resolve(own_harness.url, key_of(own_harness)))
    counted = own_harness.server.config.http_protocol_class.keywords["counted"]  # type: ignore[union-attr]
    before = len(counted.open)
    socket = WebSocket.connect(transport, "/v1/test/me")
    socket.receive()
    assert len(counted.open) == before + 1
    socket.close()
    own_harness.until(lambda: len(counted.open) == before)
    waiting = WebSocket.connect(transport, "/v1/test/me")
    waiting.receive()
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(waiting.receive)
        own_harness.stop()
        with pytest.raises((StreamInterrupted, ConnectionFailed)):
            end.result(20)
        assert waiting.close_code == 1012
    transport.close()
