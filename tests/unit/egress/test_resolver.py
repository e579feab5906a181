"""The resolver on real sockets: both listeners, its bounds, what the node and the proxy ask it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bellglass.egress.resolver import listeners, names, wire
from bellglass.egress.resolver.app import Resolver

RULES = {"mode": "rules", "rules": [{"host": "a.test", "ports": [443]}]}
DENY = {"mode": "deny", "rules": []}
OPEN = {"mode": "open", "rules": []}


def question(name: str, type: int = wire.A) -> bytes:
    raw = b"".join(bytes([len(label)]) + label for label in name.encode().split(b".")) + b"\0"
    return struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + raw + struct.pack("!HH", type, 1)


def code(answer: bytes) -> int:
    return answer[3] & 0xF


class Attached:
    """A sandbox's listeners on loopback and what it can do with them."""

    def __init__(self, rig: Rig, sandbox: str, policy: dict[str, Any]) -> None:
        self.rig, self.sandbox, self.generation = rig, sandbox, 0
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.tcp = socket.socket()
        for sock in (self.udp, self.tcp):
            sock.bind(("127.0.0.1", 0))
        self.tcp.listen(64)
        self.udp_address, self.tcp_address = self.udp.getsockname(), self.tcp.getsockname()
        passed = [self.udp.detach(), self.tcp.detach()]
        rig.handle({"op": "attach", "sandbox": sandbox, "generation": 0, "policy": policy}, passed)
        assert passed == [], "the resolver has taken both"

    def ask(self, name: str, type: int = wire.A) -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(20)
            sock.connect(self.udp_address)
            sock.send(question(name, type))
            return sock.recv(4096)

    def address(self, name: str) -> str:
        answer = self.ask(name)
        assert code(answer) == wire.NOERROR
        return socket.inet_ntoa(answer[-4:])

    def dial(self) -> socket.socket:
        sock = socket.create_connection(self.tcp_address, timeout=20)
        sock.settimeout(20)
        return sock

    def set_policy(self, policy: dict[str, Any]) -> None:
        self.generation += 1
        self.rig.handle({"op": "policy", "sandbox": self.sandbox, "generation": self.generation, "policy": policy}, [])

    def counts(self) -> dict[str, int]:
        return self.rig.handle({"op": "counters"}, [])["sandboxes"][self.sandbox]


class Rig:
    def __init__(self, thread: Any) -> None:
        self.thread = thread
        self.events: list[dict[str, Any]] = []
        self.resolver = Resolver(thread.loop)
        self.resolver.publish = self.events.append

    def handle(self, document: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        return self.thread.call(self.resolver.handle, document, descriptors)

    def attach(self, sandbox: str = "sbone", policy: dict[str, Any] | None = None) -> Attached:
        return Attached(self, sandbox, RULES if policy is None else policy)

    def name_of(self, sandbox: str, address: str) -> str | None:
        asked = {"id": 1, "sandbox": sandbox, "address": address}
        return self.thread.call(self.resolver.answer_name, asked, [])["name"]

    def close(self) -> None:
        for sandbox in list(self.resolver.held):
            self.handle({"op": "detach", "sandbox": sandbox}, [])


@pytest.fixture
def rig(thread: Any) -> Iterator[Rig]:
    running = Rig(thread)
    yield running
    running.close()


def test_names_become_addresses_that_the_proxy_can_turn_back(rig: Rig) -> None:
    box, other = rig.attach("sbone"), rig.attach("sbtwo", OPEN)
    address = box.address("a.test")
    assert address.startswith(("198.18.", "198.19."))
    assert rig.name_of("sbone", address) == "a.test"
    assert rig.name_of("sbtwo", address) is None, "each sandbox has names of its own"
    assert rig.name_of("sbtwo", other.address("b.test")) == "b.test"
    for nonsense in ("198.18.0.1", "1.2.3.4", "::1", "", "198.18.0", 7, None):
        assert rig.name_of("sbone", nonsense) is None  # type: ignore[arg-type]
    assert rig.name_of("sbnone", address) is None


def test_a_refused_name_is_an_event(rig: Rig) -> None:
    box = rig.attach()
    assert code(box.ask("evil.test")) == wire.NXDOMAIN and code(box.ask("evil.test", wire.AAAA)) == wire.NXDOMAIN
    [event] = rig.events
    assert {key: event[key] for key in ("sandbox", "kind", "host", "reason")} == {
        "sandbox": "sbone", "kind": "dns", "host": "evil.test", "reason": "name_not_allowed"
    }  # fmt: skip
    counts = box.counts()
    assert (counts["dns_queries"], counts["dns_refused"], counts["dns_answered"]) == (2, 2, 0)


def test_tcp_answers_many_queries_in_one_connection(rig: Rig) -> None:
    box = rig.attach()
    with box.dial() as sock:
        packets = [question("a.test"), question("evil.test"), question("a.test", 28)]
        stream = b"".join(len(packet).to_bytes(2) + packet for packet in packets)
        for byte in stream[:5]:
            sock.send(bytes([byte]))
        sock.sendall(stream[5:])
        reader = sock.makefile("rb")
        answers = [reader.read(int.from_bytes(reader.read(2))) for _ in packets]
    assert [code(answer) for answer in answers] == [wire.NOERROR, wire.NXDOMAIN, wire.NOERROR]
    assert socket.inet_ntoa(answers[0][-4:]) == box.address("a.test"), "the same as by UDP"


@pytest.mark.parametrize("sent", [b"\0\0", b"\xff\xff", (4097).to_bytes(2), b"\0\x03abc", b"\0\x0c" + b"\xff" * 12])
def test_tcp_that_is_no_dns_is_hung_up_on(rig: Rig, sent: bytes) -> None:
    box = rig.attach()
    with box.dial() as sock:
        sock.sendall(sent)
        assert sock.recv(100) == b""
    assert box.address("a.test")


def test_connections_are_bounded_and_others_are_served_meanwhile(rig: Rig) -> None:
    box, other = rig.attach("sbone"), rig.attach("sbtwo")
    held = [box.dial() for _ in range(listeners.MAX_CONNECTIONS)]
    for sock in held:  # each is served, so each is open
        sock.sendall(len(question("a.test")).to_bytes(2) + question("a.test"))
        assert sock.recv(100)
    with box.dial() as more, pytest.raises(ConnectionResetError):
        more.recv(1)
    assert box.address("a.test") and other.address("a.test")
    with other.dial() as sock:
        sock.sendall(len(question("a.test")).to_bytes(2) + question("a.test"))
        assert sock.recv(100)
    held.pop().close()
    deadline = time.monotonic() + 20
    while True:  # the place is free once the resolver has read the end of the closed one
        with box.dial() as sock:
            try:
                sock.sendall(len(question("a.test")).to_bytes(2) + question("a.test"))
                assert sock.recv(100)
                break
            except ConnectionError:
                assert time.monotonic() < deadline
    for sock in held:
        sock.close()


def test_a_client_that_reads_nothing_is_left(rig: Rig) -> None:
    box = rig.attach()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(box.tcp_address)
        packet = len(question("a.test")).to_bytes(2) + question("a.test")
        with pytest.raises(ConnectionError):  # hung up on, not served without bound
            while True:
                sock.sendall(packet * 100)
    assert box.address("a.test")


def test_a_flood_slows_down_its_own_sandbox_only(rig: Rig) -> None:
    """Its packets beyond the rate are not even read, so the others don't wait for them."""
    loud, quiet = rig.attach("sbone", OPEN), rig.attach("sbtwo")
    stop = threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(loud.udp_address)
            number = 0
            while not stop.is_set():
                sock.send(question(f"n{number}.test"))
                number += 1

    flooding = threading.Thread(target=flood)
    begun = time.monotonic()
    flooding.start()
    try:
        while loud.counts()["dns_limited"] < 3:
            assert time.monotonic() - begun < 60
        waits = []
        for _ in range(50):
            asked = time.monotonic()
            assert quiet.address("a.test")
            waits.append(time.monotonic() - asked)
    finally:
        stop.set()
        flooding.join()
    counts, seconds = loud.counts(), time.monotonic() - begun
    assert counts["dns_queries"] <= listeners.BURST + listeners.PER_SECOND * (seconds + 1)
    assert counts["names"] <= names.MAX_NAMES
    assert sorted(waits)[25] < 0.1, "half of the other's answers come within 100 ms, beside a flood and other work"


def test_a_policy_holds_from_its_answer_on(rig: Rig) -> None:
    box = rig.attach(policy=OPEN)
    kept, gone = box.address("a.test"), box.address("b.test")
    box.set_policy(RULES)
    assert rig.name_of("sbone", gone) is None and rig.name_of("sbone", kept) == "a.test"
    spelled = box.address("a.test")
    assert code(box.ask("b.test")) == wire.NXDOMAIN and rig.name_of("sbone", spelled) == "a.test"
    box.set_policy(DENY)
    assert code(box.ask("a.test")) == wire.NXDOMAIN
    assert rig.name_of("sbone", kept) is None and rig.name_of("sbone", spelled) is None


def test_attaching_again_replaces_the_listeners(rig: Rig) -> None:
    box = rig.attach()
    address = box.address("a.test")
    with box.dial() as old:
        old.sendall(len(question("a.test")).to_bytes(2) + question("a.test"))
        assert old.recv(100)
        again = rig.attach()
        assert old.recv(1) == b"", "connections of the old listener end"
    assert again.address("a.test") == address, "names are kept"
    with pytest.raises(OSError), socket.create_connection(box.tcp_address, timeout=20):
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.connect(box.udp_address)
        sock.send(question("a.test"))
        with pytest.raises(ConnectionRefusedError):
            sock.recv(100)


def test_after_detach_nobody_answers(rig: Rig) -> None:
    box = rig.attach()
    address = box.address("a.test")
    with box.dial() as open_one:
        open_one.sendall(len(question("a.test")).to_bytes(2) + question("a.test"))
        assert open_one.recv(100)
        rig.handle({"op": "detach", "sandbox": "sbone"}, [])
        assert open_one.recv(1) == b""
    assert rig.name_of("sbone", address) is None
    with pytest.raises(OSError), box.dial():
        pass
    assert rig.handle({"op": "list"}, [])["sandboxes"] == {}
