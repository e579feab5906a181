"""The proxy between real namespaces: what is dialled by name and by address, relayed as it is."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bellglass.testing.egress import BEHIND_THE_FLOOR, HOST_ADDRESSES, WORLD, Rig, refused, until

SSH = {"host": "a.test", "ports": [22]}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as running:
        running.dns.zone.update({"a.test": [WORLD + "10"], "b.test": [WORLD + "11"]})
        running.attach("sb1", SSH)
        yield running


@pytest.fixture
def servers(rig: Rig) -> Iterator[dict[str, socket.socket]]:
    """Listening at port 22 of both of the world's machines, and nobody has dialled them so far."""
    with contextlib.ExitStack() as undo:
        found = {}
        for name, address in (("a.test", WORLD + "10"), ("b.test", WORLD + "11")):
            found[name] = undo.enter_context(rig.listen(address, 22))
            found[name].settimeout(20)
        rig.policy("sb1", SSH)
        yield found


def untouched(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        server.accept()
    except BlockingIOError:
        return True
    return False


def pair(rig: Rig, target: str, server: socket.socket, port: int = 22) -> tuple[socket.socket, socket.socket]:
    client = rig.sandboxes["sb1"].dial(target, port)
    try:
        peer, _ = server.accept()
    except TimeoutError:
        client.close()
        raise
    peer.settimeout(20)
    return client, peer


def passes(rig: Rig, target: str, server: socket.socket, port: int = 22) -> None:
    client, peer = pair(rig, target, server, port)
    with client, peer:
        peer.sendall(b"SSH-2.0-x\r\n")
        assert client.recv(100) == b"SSH-2.0-x\r\n"
        client.sendall(b"SSH-2.0-y\r\n")
        assert peer.recv(100) == b"SSH-2.0-y\r\n"


def test_by_name_and_port_and_nothing_else(rig: Rig, servers: dict[str, socket.socket]) -> None:
    passes(rig, "a.test", servers["a.test"])
    box = rig.sandboxes["sb1"]
    rig.policy("sb1", SSH, {"host": "b.test", "ports": [22]})
    passes(rig, "b.test", servers["b.test"])
    with refused(rig, "port_not_allowed") as events:
        assert box.is_reset("a.test", 23)
    assert (events[0]["host"], events[0]["port"], events[0]["rule"]) == ("a.test", 23, "a.test:22")
    synthetic = box.resolve("b.test")
    assert synthetic is not None
    rig.policy("sb1", SSH)
    asked = len(rig.dns.asked)
    with refused(rig, "name_not_allowed"):
        assert box.resolve("b.test") is None
    rig.events.clear()
    assert box.is_reset(synthetic, 22)
    assert rig.event()["reason"] in ("unknown_address", "name_not_allowed")
    assert len(rig.dns.asked) == asked, "a name that is refused was looked up"
    assert untouched(servers["b.test"])


def test_addresses_by_cidr_alone(rig: Rig, servers: dict[str, socket.socket]) -> None:
    rig.policy("sb1", SSH, {"cidr": WORLD + "0/24", "ports": [22]})
    passes(rig, WORLD + "11", servers["b.test"])
    with refused(rig, "port_not_allowed"):
        assert rig.sandboxes["sb1"].is_reset(WORLD + "11", 23)
    rig.policy("sb1", SSH)
    with refused(rig, "address_not_allowed") as events:
        assert rig.sandboxes["sb1"].is_reset(WORLD + "10", 22)
    assert (events[0]["address"], events[0]["host"]) == (WORLD + "10", None)
    rig.policy("sb1", mode="open")
    passes(rig, WORLD + "11", servers["b.test"])
    rig.policy("sb1", mode="deny")
    with refused(rig, "address_not_allowed"):
        assert rig.sandboxes["sb1"].is_reset(WORLD + "11", 22)
    assert untouched(servers["a.test"]) and untouched(servers["b.test"])


def test_a_synthetic_address_that_nobody_was_told(rig: Rig) -> None:
    rig.policy("sb1", mode="open")
    with refused(rig, "unknown_address"):
        assert rig.sandboxes["sb1"].is_reset("198.19.255.254", 22)
    with refused(rig, "floor"):
        assert rig.sandboxes["sb1"].is_reset("198.18.0.1", 22)


@pytest.mark.parametrize("address", [*BEHIND_THE_FLOOR, *HOST_ADDRESSES, "127.0.0.1", "0.0.0.0", "255.255.255.255"])
def test_the_floor_by_address_and_by_name(rig: Rig, servers: dict[str, socket.socket], address: str) -> None:
    """A name of the policy's answers now with a public address, now with one of the floor's."""
    with contextlib.ExitStack() as undo:
        if address in BEHIND_THE_FLOOR:
            trap = undo.enter_context(rig.listen(address, 22))
        else:
            trap = undo.enter_context(rig.host.call(socket.create_server, ("0.0.0.0", 22)))
        answers = [[WORLD + "11"], [address], [address, WORLD + "11"]]
        rig.dns.zone["rebind.test"] = lambda: answers.pop(0)
        rig.policy("sb1", {"host": "rebind.test", "ports": [22]}, {"cidr": "0.0.0.0/0", "ports": [22]})
        passes(rig, WORLD + "10", servers["a.test"])
        passes(rig, "rebind.test", servers["b.test"])
        with refused(rig, "floor") as events:
            assert rig.sandboxes["sb1"].is_reset("rebind.test", 22)
        assert (events[0]["host"], events[0]["address"]) == ("rebind.test", address)
        passes(rig, "rebind.test", servers["b.test"])  # the one above the floor is dialled
        if address not in ("0.0.0.0", "127.0.0.1", "255.255.255.255"):  # those never leave the sandbox
            with refused(rig, "floor"):
                assert rig.sandboxes["sb1"].is_reset(address, 22)
        assert untouched(trap)


def test_an_address_that_became_the_hosts_own(rig: Rig, servers: dict[str, socket.socket]) -> None:
    own = WORLD + "77"
    rig.policy("sb1", {"cidr": WORLD + "0/24", "ports": [22]})
    rig.world.run("ip", "addr", "add", f"{own}/24", "dev", "w0")
    with rig.listen(own, 22) as server:
        server.settimeout(20)
        passes(rig, own, server)
    rig.world.run("ip", "addr", "del", f"{own}/24", "dev", "w0")
    rig.host.run("ip", "addr", "add", f"{own}/24", "dev", "h0")
    with rig.host.call(socket.create_server, (own, 22)) as trap, refused(rig, "floor"):
        assert rig.sandboxes["sb1"].is_reset(own, 22)
        assert untouched(trap)
    rig.host.run("ip", "addr", "del", f"{own}/24", "dev", "h0")


@pytest.mark.parametrize("address", ["::ffff:127.0.0.1", "::1", "fd00::1", "::ffff:10.0.0.1"])
def test_names_that_answer_with_ipv6_of_the_floor(rig: Rig, servers: dict[str, socket.socket], address: str) -> None:
    rig.host.run("ip", "-6", "addr", "replace", "2a01:db9::1/64", "dev", "h0", "nodad")
    rig.world.run("ip", "-6", "addr", "replace", "2a01:db9::2/64", "dev", "w0", "nodad")
    rig.host.run("ip", "-6", "route", "replace", "default", "via", "2a01:db9::2")
    try:
        answers = [["2a01:db9::2"], [address]]
        rig.dns.zone["six.test"] = lambda: (
            answers.pop(0) if len(answers[0][0]) and rig.dns.asked.count("six.test") % 2 == 0 else []
        )
        rig.dns.asked.clear()
        rig.policy("sb1", {"host": "six.test", "ports": [22]})
        with rig.world.call(_listen_v6) as server:
            server.settimeout(20)
            passes(rig, "six.test", server)
        with rig.host.call(_listen_v6) as trap, refused(rig, "floor"):
            assert rig.sandboxes["sb1"].is_reset("six.test", 22)
            assert untouched(trap)
    finally:
        rig.host.run("ip", "-6", "route", "flush", "default")


def _listen_v6() -> socket.socket:
    return socket.create_server(("::", 22), family=socket.AF_INET6)


def test_an_exception_of_the_operator_opens_its_addresses() -> None:
    with Rig(exceptions=["10.0.0.0/24"]) as rig, rig.listen("10.0.0.1", 22) as server:
        server.settimeout(20)
        rig.attach("sb1", {"cidr": "10.0.0.0/8", "ports": [22]}, {"cidr": "192.168.0.0/16", "ports": [22]})
        passes(rig, "10.0.0.1", server)
        with refused(rig, "floor") as events:
            assert rig.sandboxes["sb1"].is_reset("192.168.7.7", 22)
        assert events[0]["rule"] == "192.168.0.0/16"


def test_hosts_file_comes_first_and_is_read_anew(rig: Rig, servers: dict[str, socket.socket]) -> None:
    rig.policy("sb1", {"host": "intern.test", "ports": [22]})
    assert rig.sandboxes["sb1"].is_reset("intern.test", 22)
    rig.hosts.write_text(f"{WORLD}11 intern.test other.test # comment\n")

    def by_the_file() -> bool:
        try:
            passes(rig, "intern.test", servers["b.test"])
        except (ConnectionResetError, BrokenPipeError, TimeoutError):
            return False
        return True

    servers["b.test"].settimeout(0.2)
    until(by_the_file)
    servers["b.test"].settimeout(20)
    rig.dns.asked.clear()
    passes(rig, "intern.test", servers["b.test"])
    assert rig.dns.asked == []


def test_names_that_lead_nowhere(rig: Rig, servers: dict[str, socket.socket]) -> None:
    rig.policy("sb1", SSH, {"host": "gone.test", "ports": [22]}, {"host": "dead.test", "ports": [22]})
    passes(rig, "a.test", servers["a.test"])
    rig.dns.zone["dead.test"] = [WORLD + "12"]
    with refused(rig, "lookup_failed"):
        assert rig.sandboxes["sb1"].is_reset("gone.test", 22)
    before = rig.counters("sb1")["refused"].get("connect_failed", 0)
    assert rig.sandboxes["sb1"].is_reset("dead.test", 22)
    until(lambda: rig.counters("sb1")["refused"].get("connect_failed", 0) == before + 1)


def test_the_next_address_is_tried(rig: Rig, servers: dict[str, socket.socket]) -> None:
    rig.policy("sb1", {"host": "two.test", "ports": [22]})
    rig.dns.zone["two.test"] = [WORLD + "12", WORLD + "11"]
    passes(rig, "two.test", servers["b.test"])


def test_half_close_either_way(rig: Rig, servers: dict[str, socket.socket]) -> None:
    for one, other in ((0, 1), (1, 0)):
        ends = pair(rig, "a.test", servers["a.test"])
        ends[1].sendall(b"!")
        assert ends[0].recv(1) == b"!"
        with ends[0], ends[1]:
            ends[one].sendall(b"question")
            ends[one].shutdown(socket.SHUT_WR)
            assert ends[other].recv(100) == b"question"
            assert ends[other].recv(100) == b""
            ends[other].sendall(b"answer")
            assert ends[one].recv(100) == b"answer"
            ends[other].close()
            assert ends[one].recv(100) == b""
    until(lambda: rig.counters("sb1")["open"] == 0)


def test_a_reset_is_passed_on_either_way(rig: Rig, servers: dict[str, socket.socket]) -> None:
    for one, other in ((0, 1), (1, 0)):
        ends = pair(rig, "a.test", servers["a.test"])
        ends[1].sendall(b"!")
        assert ends[0].recv(1) == b"!"
        ends[one].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        ends[one].close()
        with pytest.raises(ConnectionResetError):
            ends[other].recv(1)
        ends[other].close()
    until(lambda: rig.counters("sb1")["open"] == 0)


def test_megabytes_arrive_whole_both_ways_at_once(rig: Rig, servers: dict[str, socket.socket]) -> None:
    client, peer = pair(rig, "a.test", servers["a.test"])
    data = [os.urandom(20_000_000), os.urandom(20_000_000)]
    received: list[Any] = [b"", b""]

    def send(sock: socket.socket, what: bytes) -> None:
        sock.sendall(what)
        sock.shutdown(socket.SHUT_WR)

    def receive(sock: socket.socket, index: int) -> None:
        pieces = []
        while piece := sock.recv(1 << 16):
            pieces.append(piece)
        received[index] = b"".join(pieces)

    peer.sendall(b"!")  # the server speaks first: what the client sends is nobody's business
    assert client.recv(1) == b"!"
    threads = [
        threading.Thread(target=send, args=(client, data[0])),
        threading.Thread(target=send, args=(peer, data[1])),
        threading.Thread(target=receive, args=(peer, 0)),
        threading.Thread(target=receive, args=(client, 1)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert received == data
    client.close()
    peer.close()


def test_the_way_to_the_sandbox_is_not_paced(rig: Rig, servers: dict[str, socket.socket]) -> None:
    """Whatever the host's default is: BBR's timers would cost more than the bytes do."""
    gateway, settings = rig.sandboxes["sb1"].outer, "net.ipv4.tcp_{}congestion_control"
    known = gateway.run("sysctl", "-n", settings.format("available_")).split()
    others = [name for name in ("bbr", *known) if name in known and name != "reno"]
    if not others:
        pytest.skip("a kernel that has reno alone")
    gateway.run("sysctl", "-qw", f"{settings.format('')}={others[0]}")
    client, peer = pair(rig, "a.test", servers["a.test"])
    with client, peer:
        peer.sendall(b"x")
        assert client.recv(1) == b"x"
        seen = gateway.run("ss", "-tinH", "state", "established", "sport", "=", ":1080").split()
        assert "reno" in seen and others[0] not in seen
