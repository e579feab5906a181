"""Open but for some addresses: dialled as such or by a name, before, while and after a connection comes about."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from bellglass.testing.egress import WORLD, Rig, refused, until
from bellglass.testing.internet import open_connections

DENIED, OTHER, SILENT = WORLD + "10", WORLD + "11", WORLD + "12"
SWALLOW = f"table ip swallow {{ chain inward {{ type filter hook input priority 0; ip daddr {SILENT} drop; }}\n}}\n"
Servers = dict[str, socket.socket]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as running:
        running.dns.zone |= {"a.test": [DENIED], "b.test": [OTHER], "both.test": [DENIED, OTHER]}
        running.attach("sb1", mode="open")
        running.attach("sb2", mode="open")
        yield running


@pytest.fixture
def servers(rig: Rig) -> Iterator[Servers]:
    with contextlib.ExitStack() as undo:
        found = {address: undo.enter_context(rig.listen(address, 22)) for address in (DENIED, OTHER)}
        for sock in found.values():
            sock.settimeout(20)
        rig.policy("sb1", mode="open")
        yield found


@contextlib.contextmanager
def connected(rig: Rig, target: str, server: socket.socket, sandbox: str = "sb1") -> Iterator[socket.socket]:
    """The client, once the server has said something."""
    with rig.sandboxes[sandbox].dial(target, 22) as client:
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"SSH")
            assert client.recv(3) == b"SSH"
            yield client


def passes(rig: Rig, target: str, server: socket.socket) -> None:
    with connected(rig, target, server):
        pass
    until(lambda: rig.counters("sb1")["open"] == 0)  # else the next change of the policy may cut it, and tell so


def untouched(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return True
    finally:
        server.settimeout(20)
    return False


@pytest.mark.parametrize("deny", [DENIED, f"{DENIED}/31", f"::ffff:{DENIED}", "128.0.0.0/1"])
def test_by_address_and_by_name(rig: Rig, servers: Servers, deny: str) -> None:
    for target in (DENIED, "a.test"):
        passes(rig, target, servers[DENIED])
    elsewhere = [WORLD + "8/31", WORLD + "12/32", "::/0", "0.0.0.0/8", "198.18.0.0/15"]
    rig.policy("sb1", mode="open", deny=elsewhere)
    for target in (DENIED, "a.test"):
        passes(rig, target, servers[DENIED])
    rig.policy("sb1", mode="open", deny=[*elsewhere, deny])
    for target, host in ((DENIED, None), ("a.test", "a.test")):
        with refused(rig, "address_denied") as events:
            assert rig.sandboxes["sb1"].is_reset(target, 22)
        [event] = events
        assert (event["kind"], event["host"], event["address"], event["port"]) == ("tcp", host, DENIED, 22)
        assert event["rule"] == "deny " + {DENIED: f"{DENIED}/32", f"::ffff:{DENIED}": f"{DENIED}/32"}.get(deny, deny)
    assert untouched(servers[DENIED])
    with connected(rig, "a.test", servers[DENIED], "sb2"):
        pass  # another sandbox's
    rig.policy("sb1", mode="open")
    for target in (DENIED, "a.test"):
        passes(rig, target, servers[DENIED])


def test_a_name_leads_to_what_is_left_of_its_addresses(rig: Rig, servers: Servers) -> None:
    passes(rig, "both.test", servers[DENIED])
    rig.policy("sb1", mode="open", deny=[DENIED])
    passes(rig, "both.test", servers[OTHER])
    passes(rig, "b.test", servers[OTHER])
    rig.policy("sb1", mode="open", deny=[DENIED, OTHER])
    with refused(rig, "address_denied") as events:
        assert rig.sandboxes["sb1"].is_reset("both.test", 22)
    assert (events[0]["address"], events[0]["rule"]) == (DENIED, f"deny {DENIED}/32")
    assert untouched(servers[DENIED]) and untouched(servers[OTHER])


def test_the_floor_stays_below_it(rig: Rig) -> None:
    rig.policy("sb1", mode="open", deny=["11.0.0.0/8"])
    with refused(rig, "floor"):
        assert rig.sandboxes["sb1"].is_reset("10.0.0.1", 22)


def test_open_connections_to_what_is_denied_since_are_cut_before_it_answers(rig: Rig, servers: Servers) -> None:
    with (
        connected(rig, DENIED, servers[DENIED]) as by_address,
        connected(rig, "both.test", servers[DENIED]) as by_name,
        connected(rig, "b.test", servers[OTHER]) as kept,
        connected(rig, "a.test", servers[DENIED], "sb2") as others,
    ):
        rig.policy("sb1", mode="open", deny=["8.8.8.8"])
        assert rig.counters("sb1")["open"] == 3
        rig.events.clear()
        rig.policy("sb1", mode="open", deny=["8.8.8.8", f"{DENIED}/32"])
        assert rig.counters("sb1")["open"] == 1
        for sock in (by_address, by_name):
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        for sock in (kept, others):
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(1)
        until(lambda: len(rig.events) == 2)
        told = {(event["reason"], event["host"], event["address"], event["rule"]) for event in rig.events}
        assert told == {("policy_changed", host, DENIED, f"deny {DENIED}/32") for host in (None, "both.test")}


def test_a_dial_that_is_on_its_way_is_ended(rig: Rig) -> None:
    """Nobody answers it, so the kernel would send again."""
    rig.dns.zone["silent.test"] = [SILENT]
    rig.world.run("nft", "-f", "-", text=SWALLOW)
    try:
        for target in ("silent.test", SILENT):
            rig.policy("sb1", mode="open", deny=[DENIED])
            with rig.sandboxes["sb1"].dial(target, 22) as client:
                until(lambda: SILENT in rig.host.call(open_connections))
                with refused(rig, "policy_changed") as events:
                    rig.policy("sb1", mode="open", deny=[DENIED, SILENT])
                    assert SILENT not in rig.host.call(open_connections)
                assert events[0]["rule"] == f"deny {SILENT}/32"
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
    finally:
        rig.world.run("nft", "delete", "table", "ip", "swallow")


def test_a_name_that_is_being_looked_up_is_judged_by_the_policy_of_then(rig: Rig, servers: Servers) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow() -> list[str]:
        asked.set()
        assert answer.wait(20)
        return [DENIED]

    rig.dns.zone["slow.test"] = slow
    with rig.sandboxes["sb1"].dial("slow.test", 22) as client:
        assert asked.wait(20)
        rig.policy("sb1", mode="open", deny=[DENIED])
        assert rig.counters("sb1")["open"] == 1, "it may still lead elsewhere"
        with refused(rig, "address_denied") as events:
            answer.set()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        assert (events[0]["host"], events[0]["address"]) == ("slow.test", DENIED)
    assert untouched(servers[DENIED])
    rig.policy("sb1", mode="open")
    passes(rig, "slow.test", servers[DENIED])
