"""The control protocol between the node's client and a listening process, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from bellglass.egress.control import ControlError, ControlServer, Held, Sandboxes, encode, listen, receive, send
from bellglass.egress.control_client import ControlClient
from bellglass.egress.policy import Policy

OPEN = {"mode": "open", "rules": []}
DENY = {"mode": "deny", "rules": []}


class Recorder(Sandboxes):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []
        self.sockets: list[socket.socket] = []

    def attached(self, sandbox: str, listeners: list[socket.socket]) -> None:
        self.sockets += listeners
        self.seen.append(("attached", sandbox, len(listeners)))

    def changed(self, sandbox: str, policy: Policy) -> None:
        self.seen.append(("changed", sandbox, policy.mode))

    def detached(self, sandbox: str) -> None:
        self.seen.append(("detached", sandbox))

    def counted(self, sandbox: str) -> dict[str, Any]:
        return {"allowed": len(sandbox), "filler": "x" * 1000}


class Rig:
    def __init__(self, thread: Any) -> None:
        self.thread = thread
        self.path = thread.folder / "control.sock"
        self.sandboxes = Recorder()
        self.uids = frozenset({os.getuid()})
        self.events: list[dict[str, Any]] = []
        self.connects = 0
        self.server: ControlServer = thread.call(self._start)

    def _start(self) -> ControlServer:
        return ControlServer(self.thread.loop, listen(self.path), self.uids, self.sandboxes.handle)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[ControlClient]:
        async def connected(client: ControlClient) -> None:
            await client.call("list")
            self.connects += 1

        client = ControlClient(self.path, on_connected=connected, on_event=self.events.append)
        task = asyncio.create_task(client.run())
        try:
            await asyncio.wait_for(client.wait_connected(), 20)
            yield client
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for sock in self.sandboxes.sockets:
                sock.close()


@pytest.fixture
def rig(thread: Any) -> Rig:
    return Rig(thread)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def tcp_listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_attach_policy_detach(rig: Rig) -> None:
    async def run() -> None:
        async with rig.client() as client:
            with tcp_listener() as listener:
                await client.call("attach", sandbox="sb1", generation=3, policy=DENY, descriptors=[listener.fileno()])
                port = listener.getsockname()[1]
            assert (await client.call("list"))["sandboxes"] == {"sb1": 3}
            assert rig.sandboxes.sockets[0].getsockname()[1] == port
            await client.call("policy", sandbox="sb1", generation=4, policy=OPEN)
            await client.call("policy", sandbox="sb1", generation=4, policy=OPEN)
            assert (await client.call("list"))["sandboxes"] == {"sb1": 4}
            await client.call("detach", sandbox="sb1")
            await client.call("detach", sandbox="sb1")
            assert (await client.call("list"))["sandboxes"] == {}
        assert rig.sandboxes.seen == [
            ("changed", "sb1", "deny"),
            ("attached", "sb1", 1),
            ("changed", "sb1", "open"),
            ("changed", "sb1", "open"),
            ("detached", "sb1"),
        ]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"op": "policy", "sandbox": "sb1", "generation": 4, "policy": OPEN}, "stale"),
        ({"op": "attach", "sandbox": "sb1", "generation": 4, "policy": OPEN}, "stale"),
        ({"op": "policy", "sandbox": "sb2", "generation": 5, "policy": OPEN}, "unknown_sandbox"),
        ({"op": "policy", "sandbox": "sb1", "generation": 5, "policy": {"mode": "x"}}, "bad_policy"),
        ({"op": "policy", "sandbox": "sb1", "generation": True, "policy": OPEN}, "bad_packet"),
        ({"op": "policy", "sandbox": 7, "generation": 5, "policy": OPEN}, "bad_packet"),
        ({"op": "policy", "sandbox": "sb1", "generation": 5, "policy": OPEN, "until": 1}, "bad_packet"),
        ({"op": "policy", "sandbox": "sb1", "generation": 5, "policy": {**OPEN, "until": 1}}, "bad_policy"),
        ({"op": "attach", "sandbox": "sb1", "generation": 5, "policy": OPEN}, "bad_descriptors"),
        ({"op": "explode", "sandbox": "sb1"}, "unknown_op"),
    ],
)
def test_refusals_leave_what_is_held(rig: Rig, fields: dict[str, Any], code: str) -> None:
    async def run() -> None:
        async with rig.client() as client:
            with tcp_listener() as listener:
                await client.call("attach", sandbox="sb1", generation=5, policy=DENY, descriptors=[listener.fileno()])
            before = list(rig.sandboxes.seen)
            with pytest.raises(ControlError) as caught:
                await client.call(**fields)
            assert caught.value.code == code
            assert rig.sandboxes.seen == before
            assert (await client.call("list"))["sandboxes"] == {"sb1": 5}

    asyncio.run(run())


def test_descriptors_that_are_not_taken_are_closed(rig: Rig) -> None:
    def open_count() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def run() -> None:
        async with rig.client() as client:
            reading, writing = os.pipe()
            before = open_count()
            for descriptors in ([reading], [reading, writing]):
                with pytest.raises(ControlError) as caught:
                    await client.call("attach", sandbox="sb1", generation=1, policy=DENY, descriptors=descriptors)
                assert caught.value.code == "bad_descriptors"
            await client.call("list", descriptors=[reading])
            assert open_count() == before
            os.close(reading)
            os.close(writing)

    asyncio.run(run())


def test_events_reach_the_node_and_wait_while_it_is_away(rig: Rig) -> None:
    async def run() -> None:
        async with rig.client():
            rig.thread.call(rig.server.publish, {"kind": "tcp", "n": 1})
            await until(lambda: len(rig.events) == 1)
        for n in (2, 3):
            rig.thread.call(rig.server.publish, {"kind": "tcp", "n": n})
        async with rig.client():
            await until(lambda: len(rig.events) == 3)
        assert [event["n"] for event in rig.events] == [1, 2, 3]

    asyncio.run(run())


def test_a_node_that_never_reads_costs_a_count(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bellglass.egress.control.MAX_QUEUED_EVENTS", 10)

    async def run() -> None:
        for n in range(25):
            rig.thread.call(rig.server.publish, {"n": n})
        async with rig.client():
            await until(lambda: len(rig.events) == 10)
        assert rig.events[0] == {"n": 15, "suppressed": 15}
        assert rig.events[-1] == {"n": 24}

    asyncio.run(run())


def test_another_uid_is_turned_away(rig: Rig) -> None:
    rig.uids = frozenset({os.getuid() + 1})
    rig.path = rig.path.with_name("other.sock")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as sock:
        sock.settimeout(20)
        sock.connect(str(rig.path.with_name("control.sock")))
        send(sock, encode({"id": 1, "op": "list"}))
        packet = receive(sock)
        assert packet is not None and packet.document == {"id": 1, "ok": True, "sandboxes": {}}
    rig.thread.call(rig._start)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as sock:
        sock.settimeout(20)
        sock.connect(str(rig.path))
        with contextlib.suppress(BrokenPipeError):
            send(sock, encode({"id": 1, "op": "list"}))
        with contextlib.suppress(ConnectionResetError):
            assert receive(sock) is None


@pytest.mark.parametrize("data", [b"x", b"[]", b"{" * 60000, b"\xff\xfe", b'{"id":'])
def test_what_is_no_packet_ends_that_peer_alone(rig: Rig, data: bytes) -> None:
    async def run() -> None:
        async with rig.client() as client:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as sock:
                sock.settimeout(20)
                sock.connect(str(rig.path))
                sock.send(data)
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.to_thread(sock.recv, 100) == b""
            assert (await client.call("list"))["sandboxes"] == {}

    asyncio.run(run())


def test_the_client_comes_back_by_itself(rig: Rig, thread: Any) -> None:
    async def run() -> None:
        async with rig.client() as client:
            assert rig.connects == 1
            peer = thread.call(lambda: rig.server._peers[0].sock)
            thread.call(peer.shutdown, socket.SHUT_RDWR)
            await until(lambda: rig.connects == 2 and client.connected)
            assert (await client.call("list"))["sandboxes"] == {}

    asyncio.run(run())


def test_a_call_whose_peer_dies_is_told_so(thread: Any) -> None:
    path = thread.folder / "dead.sock"

    async def run() -> None:
        listener = listen(path)
        listener.setblocking(True)

        async def connected(client: ControlClient) -> None:
            return

        client = ControlClient(path, on_connected=connected, on_event=lambda event: None)
        with pytest.raises(ControlError, match="not connected"):
            await client.call("list")
        task = asyncio.create_task(client.run())
        await asyncio.wait_for(client.wait_connected(), 20)
        peer, _ = listener.accept()
        call = asyncio.create_task(client.call("list"))
        await asyncio.to_thread(peer.recv, 1000)
        peer.close()
        with pytest.raises(ControlError) as caught:
            await call
        assert caught.value.code == "lost"
        task.cancel()
        listener.close()

    asyncio.run(run())


def test_counters_and_lists_come_in_pieces(rig: Rig) -> None:
    names = [f"sb{n:03}-{'x' * 58}" for n in range(1000)]

    def hold() -> None:
        for name in names:
            rig.sandboxes.held[name] = Held(7, Policy("deny"))

    async def run() -> None:
        rig.thread.call(hold)
        async with rig.client() as client:
            assert "next" in await client.call("list") and "next" in await client.call("counters")
            assert await client.collect("list") == dict.fromkeys(names, 7)
            assert list(await client.collect("counters")) == names
            with pytest.raises(ControlError):
                await client.call("list", after=7)

    asyncio.run(run())


@pytest.mark.skipif(os.getuid() != 0, reason="the supervisor is root")
def test_events_wait_for_the_node_while_the_supervisor_asks(rig: Rig) -> None:
    rig.uids = frozenset({0, 1})
    supervisors = rig.path.with_name("both.sock")
    server = rig.thread.call(
        lambda: ControlServer(rig.thread.loop, listen(supervisors), rig.uids, rig.sandboxes.handle)
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as supervisor:
        supervisor.settimeout(20)
        supervisor.connect(str(supervisors))
        for number in range(2):
            rig.thread.call(server.publish, {"kind": "tcp"})
            supervisor.send(json.dumps({"id": number, "op": "health"}).encode())
            assert json.loads(supervisor.recv(4096)) == {"id": number, "ok": True}
        assert len(server._events) == 2
