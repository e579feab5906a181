"""A policy that changes under open connections, and sandboxes side by side: limits, floods, restarts."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from bellglass.testing.egress import PROXY_UID, RESOLVER_UID, WORLD, Rig, counted, refused, until

BOTH = ({"host": "a.test", "ports": [22]}, {"cidr": WORLD + "11/32", "ports": [22]})
MAX_CONNECTIONS = 20


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig(max_connections=MAX_CONNECTIONS) as running:
        running.dns.zone["a.test"] = [WORLD + "10"]
        running.attach("sb1", *BOTH)
        running.attach("sb2", *BOTH)
        yield running


class Talker:
    """A server that sends for ever to whoever dials it."""

    def __init__(self, rig: Rig, address: str) -> None:
        self._listener = rig.listen(address, 22)
        self.peers: list[socket.socket] = []
        threading.Thread(target=self._accept).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.peers.append(sock)
            threading.Thread(target=self._talk, args=(sock,)).start()

    @staticmethod
    def _talk(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.sendall(b"x" * 1000)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self.peers:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@pytest.fixture
def talkers(rig: Rig) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        for address in (WORLD + "10", WORLD + "11"):
            undo.callback(Talker(rig, address).close)
        rig.policy("sb1", *BOTH)
        yield


def drained(sock: socket.socket) -> bool:
    """Reads to the end; True when that was a RST."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return False


@pytest.mark.parametrize(
    ("target", "left"),
    [("a.test", (BOTH[1],)), (WORLD + "11", (BOTH[0],)), ("a.test", ({"host": "a.test", "ports": [23]}, BOTH[1]))],
)
def test_open_connections_that_the_new_policy_refuses_are_cut_before_it_answers(
    rig: Rig, talkers: None, target: str, left: tuple[dict[str, object], ...]
) -> None:
    box = rig.sandboxes["sb1"]
    other = WORLD + "11" if target == "a.test" else "a.test"
    with box.dial(target, 22) as cut, box.dial(other, 22) as kept, rig.sandboxes["sb2"].dial(target, 22) as others:
        for sock in (cut, kept, others):
            assert sock.recv(1)
        rig.policy("sb1", *BOTH)  # the same again cuts nothing
        for sock in (cut, kept, others):
            assert sock.recv(1)
        with refused(rig, "policy_changed"):
            rig.policy("sb1", *left)
            assert rig.counters("sb1")["open"] == 1
            assert drained(cut)
        for sock in (kept, others):
            assert sock.recv(1)


def test_the_server_hears_of_the_cut_at_once(rig: Rig) -> None:
    with rig.listen(WORLD + "10", 22) as server:
        server.settimeout(20)
        rig.policy("sb1", *BOTH)
        with rig.sandboxes["sb1"].dial("a.test", 22) as client:
            peer, _ = server.accept()
            with peer:
                peer.settimeout(20)
                peer.sendall(b"!")
                assert client.recv(1) == b"!"
                rig.policy("sb1", mode="deny")
                began = time.monotonic()
                with pytest.raises(ConnectionResetError):
                    peer.recv(1)
                assert time.monotonic() - began < 1


def test_what_was_let_through_unread_may_not_stay_where_it_is_read(rig: Rig, talkers: None) -> None:
    box = rig.sandboxes["sb1"]
    rig.policy("sb1", mode="open")
    with box.dial("a.test", 22) as by_name, box.dial(WORLD + "11", 22) as by_address:
        assert by_name.recv(1) and by_address.recv(1)
        rig.policy("sb1", *BOTH)
        assert drained(by_name)
        assert by_address.recv(1)


def test_connections_that_are_still_on_the_way_are_cut(rig: Rig) -> None:
    """One whose name is being looked up, one that is being dialled, one that has said nothing yet."""
    asked, answer = threading.Event(), threading.Event()

    def slow() -> list[str]:
        asked.set()
        assert answer.wait(20)
        return [WORLD + "10"]

    rig.dns.zone["slow.test"] = slow
    rules = ({"host": "slow.test", "ports": [22, 443]},)
    rig.policy("sb1", *rules)
    box = rig.sandboxes["sb1"]
    with (
        rig.listen(WORLD + "10", 22) as server,
        box.dial("slow.test", 22) as looked_up,
        box.dial("slow.test", 443) as quiet,
    ):
        assert asked.wait(20)
        until(lambda: rig.counters("sb1")["open"] == 2)
        rig.policy("sb1", mode="deny")
        assert rig.counters("sb1")["open"] == 0
        answer.set()
        assert drained(looked_up) and drained(quiet)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_detached_is_cut_and_refused(rig: Rig, talkers: None) -> None:
    box = rig.attach("sb3", *BOTH)
    with box.dial("a.test", 22) as client:
        assert client.recv(1)
        synthetic = client.getpeername()[0]
        rig.call("proxy", "detach", sandbox="sb3")
        assert drained(client)
    with pytest.raises(ConnectionRefusedError):
        box.dial(synthetic, 22)
    assert "sb3" not in rig.call("proxy", "list")["sandboxes"]


def test_a_sandbox_at_its_limit_is_refused_and_another_one_is_not(rig: Rig, talkers: None) -> None:
    box = rig.sandboxes["sb1"]
    address = box.resolve("a.test")
    assert address is not None
    with contextlib.ExitStack() as undo:
        for _ in range(MAX_CONNECTIONS):
            assert undo.enter_context(box.dial(address, 22)).recv(1)
        with counted(rig, "limit"):
            assert box.is_reset(address, 22)
        with rig.sandboxes["sb2"].dial("a.test", 22) as other:
            assert other.recv(1)
    until(lambda: rig.counters("sb1")["open"] == 0)
    with box.dial(address, 22) as again:
        assert again.recv(1)


def test_a_flood_is_told_with_a_count(rig: Rig) -> None:
    rig.policy("sb2", *BOTH)
    rig.events.clear()
    before = sum(rig.counters("sb2")["refused"].values())

    def flood() -> None:
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection((WORLD + "12", 22), 20):
                pass

    rig.sandboxes["sb2"].inner.call(flood)
    until(lambda: sum(rig.counters("sb2")["refused"].values()) == before + 400)

    def all_told() -> bool:
        assert rig.sandboxes["sb2"].is_reset(WORLD + "12", 22)
        told = [event for event in rig.events if event["sandbox"] == "sb2"]
        return any("suppressed" in event for event in told)

    until(all_told)
    told = [event for event in rig.events if event["sandbox"] == "sb2"]
    assert len(told) < 400
    made = sum(rig.counters("sb2")["refused"].values()) - before
    counted_ones = len(told) + sum(event.get("suppressed", 0) for event in told)
    assert counted_ones <= made


DOWNLOADS = """
import select, socket, sys
socks = [socket.create_connection((sys.argv[1], 22)) for _ in range(int(sys.argv[2]))]
print("ready", flush=True)
while True:
    for sock in select.select(socks, [], [])[0]:
        sock.recv(1 << 18)
"""
REFUSALS = """
import socket, sys
print("ready", flush=True)
while True:
    try:
        socket.create_connection((sys.argv[1], 22)).close()
    except OSError:
        pass
"""


def child(rig: Rig, code: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A program inside sb1 that floods, by itself: threads of the tests would wait for each other."""
    argv = [sys.executable, "-c", code, *arguments]
    process = rig.sandboxes["sb1"].inner.call(lambda: subprocess.Popen(argv, stdout=subprocess.PIPE))
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def test_a_neighbour_is_served_through_a_flood(rig: Rig, talkers: None) -> None:
    """One sandbox opens refused connections as fast as it can and keeps all its allowed ones busy."""
    address = rig.sandboxes["sb1"].resolve("a.test")
    assert address is not None
    flood = [child(rig, DOWNLOADS, address, "4"), child(rig, REFUSALS, WORLD + "12")]
    try:
        waits = []
        for _ in range(20):
            began = time.monotonic()
            with rig.sandboxes["sb2"].dial("a.test", 22) as other:
                assert other.recv(1)
            waits.append(time.monotonic() - began)
        assert sorted(waits)[10] < 0.5, waits
        counters = rig.counters("sb1")
        assert counters["refused"]["address_not_allowed"] > 20 and counters["bytes_in"] > 1_000_000
    finally:
        for process in flood:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_while_a_process_is_dead_nothing_passes(rig: Rig, talkers: None) -> None:
    box = rig.attach("sb4", *BOTH)
    with box.dial("a.test", 22) as client:
        assert client.recv(1)
        synthetic = client.getpeername()[0]
        rig.processes["resolver"].kill()
        rig.processes["resolver"].wait()
        assert client.recv(1)
        with counted(rig, "unknown_address", "sb4"):
            assert box.is_reset(synthetic, 22)
        with box.dial(WORLD + "11", 22) as by_address:
            assert by_address.recv(1)
        rig.processes["proxy"].kill()
        rig.processes["proxy"].wait()
        drained(client)
    for target in (synthetic, WORLD + "11"):
        with pytest.raises(ConnectionRefusedError):
            box.dial(target, 22)
    for name, uid in (("resolver", RESOLVER_UID), ("proxy", PROXY_UID)):
        rig.close_process(name)
        rig.start(name, uid)
    for target in (synthetic, WORLD + "11"):
        with pytest.raises(ConnectionRefusedError):
            box.dial(target, 22)
    until(lambda: rig.clients["proxy"].connected and rig.clients["resolver"].connected)
    box = rig.attach("sb5", *BOTH)
    with box.dial("a.test", 22) as client:
        assert client.recv(1)
