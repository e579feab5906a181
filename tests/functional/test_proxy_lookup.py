"""How the proxy asks DNS servers: which answers it takes, what it keeps, whom it asks next."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bellglass.egress.proxy import dns, lookup
from bellglass.testing.egress import WORLD, Rig, counted, until

DEAD, SERVER = WORLD + "54", WORLD + "55"
TRUNCATED = 0x0200
ADDRESS = {WORLD + "10": b"\xcb\x00\x72\x0a", WORLD + "11": b"\xcb\x00\x72\x0b"}
Answerer = Callable[[bytes], list[bytes]]


def records(query: bytes, *found: tuple[bytes, int, bytes], ttl: int = 0, flags: int = 0x8180) -> bytes:
    """An answer with (owner, type, data)s."""
    head = query[:2] + flags.to_bytes(2, "big") + b"\0\1" + len(found).to_bytes(2, "big") + b"\0\0\0\0" + query[12:]
    return head + b"".join(
        owner + kind.to_bytes(2, "big") + b"\0\1" + ttl.to_bytes(4, "big") + len(data).to_bytes(2, "big") + data
        for owner, kind, data in found
    )


def plain(query: bytes, address: str, ttl: int = 0) -> bytes:
    return records(query, (b"\xc0\x0c", dns.A, ADDRESS[address]), ttl=ttl)


class Server:
    """Answers each query by `answer`, with as many packets as that makes; by TCP with `by_tcp`'s."""

    def __init__(self, rig: Rig) -> None:
        self.answer: Answerer = lambda query: []
        self.by_tcp: Answerer = lambda query: []
        self.asked = 0
        self.ports: set[int] = set()
        self.ids: set[bytes] = set()
        self._udp, self._tcp = rig.world.call(self._open)
        self._threads = [threading.Thread(target=self._serve_udp), threading.Thread(target=self._serve_tcp)]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _open() -> tuple[socket.socket, socket.socket]:
        udp = socket.socket(type=socket.SOCK_DGRAM)
        udp.bind((SERVER, 53))
        return udp, socket.create_server((SERVER, 53))

    def _serve_udp(self) -> None:
        while True:
            query, client = self._udp.recvfrom(4096)
            if not query:
                return
            self.asked += 1
            self.ports.add(client[1])
            self.ids.add(query[:2])
            for packet in self.answer(query):
                self._udp.sendto(packet, client)

    def _serve_tcp(self) -> None:
        while True:
            try:
                sock, _ = self._tcp.accept()
            except OSError:
                return
            with sock:
                query = sock.recv(4096)[2:]
                for packet in self.by_tcp(query):
                    data = len(packet).to_bytes(2, "big") + packet
                    for n in range(0, len(data), 7):
                        sock.sendall(data[n : n + 7])

    def close(self) -> None:
        self._udp.sendto(b"", (SERVER, 53))
        self._tcp.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._udp.close()
        self._tcp.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """The first of its servers is an address where nobody answers."""
    with Rig(upstream_dns=[SERVER]) as running:
        for address in (DEAD, SERVER):
            running.world.run("ip", "addr", "add", f"{address}/24", "dev", "w0")
        running.attach("sb1", {"host": "*.a.test", "ports": [22]})
        yield running


@pytest.fixture
def server(rig: Rig) -> Iterator[Server]:
    running = Server(rig)
    yield running
    running.close()


@pytest.fixture
def listeners(rig: Rig) -> Iterator[dict[str, socket.socket]]:
    with contextlib.ExitStack() as undo:
        found = {address: undo.enter_context(rig.listen(address, 22)) for address in ADDRESS}
        for sock in found.values():
            sock.settimeout(20)
        yield found


def reaches(rig: Rig, name: str, listener: socket.socket) -> None:
    with rig.sandboxes["sb1"].dial(name, 22):
        listener.accept()[0].close()


def test_source_ports_and_ids_differ(rig: Rig, server: Server, listeners: dict[str, socket.socket]) -> None:
    server.answer = lambda query: [plain(query, WORLD + "10")]
    for n in range(12):
        reaches(rig, f"n{n}.a.test", listeners[WORLD + "10"])
    assert server.asked == 12
    assert len(server.ports) > 6 and len(server.ids) > 6


def test_what_does_not_answer_the_question_is_passed_over(
    rig: Rig, server: Server, listeners: dict[str, socket.socket]
) -> None:
    def answers(query: bytes) -> list[bytes]:
        wrong_id = bytes([query[0] ^ 1]) + query[1:]
        other_name = query[:12] + query[12:].replace(b"poison", b"poisox")
        return [
            b"",
            b"x" * 40,
            plain(wrong_id, WORLD + "11"),
            plain(other_name, WORLD + "11"),
            records(query, (b"\4evil\4test\0", dns.A, ADDRESS[WORLD + "11"]))[:-1],
            plain(query, WORLD + "10"),
            plain(query, WORLD + "11"),
        ]

    server.answer = answers
    reaches(rig, "poison.a.test", listeners[WORLD + "10"])
    listeners[WORLD + "11"].setblocking(False)
    with pytest.raises(BlockingIOError):
        listeners[WORLD + "11"].accept()


def test_an_address_of_another_name_is_not_taken(rig: Rig, server: Server, listeners: dict[str, socket.socket]) -> None:
    server.answer = lambda query: [plain(query, WORLD + "10")]
    reaches(rig, "good.a.test", listeners[WORLD + "10"])
    server.answer = lambda query: [records(query, (b"\4evil\4test\0", dns.A, ADDRESS[WORLD + "11"]))]
    with counted(rig, "lookup_failed"):
        assert rig.sandboxes["sb1"].is_reset("stray.a.test", 22)


def test_aliases_within_the_answer(rig: Rig, server: Server, listeners: dict[str, socket.socket]) -> None:
    alias = b"\3cdn\4test\0"
    server.answer = lambda query: [records(query, (b"\xc0\x0c", 5, alias), (alias, dns.A, ADDRESS[WORLD + "10"]))]
    reaches(rig, "alias.a.test", listeners[WORLD + "10"])
    server.answer = lambda query: [records(query, (b"\xc0\x0c", 5, b"\xc0\x0c"))]
    with counted(rig, "lookup_failed"):
        assert rig.sandboxes["sb1"].is_reset("circle.a.test", 22)


def test_a_truncated_answer_is_asked_for_by_tcp(rig: Rig, server: Server, listeners: dict[str, socket.socket]) -> None:
    server.answer = lambda query: [records(query, flags=0x8180 | TRUNCATED)]
    server.by_tcp = lambda query: [plain(query, WORLD + "11")]
    reaches(rig, "long.a.test", listeners[WORLD + "11"])
    server.by_tcp = lambda query: []
    with counted(rig, "lookup_failed"):
        assert rig.sandboxes["sb1"].is_reset("longer.a.test", 22)


def test_a_name_that_is_refused_meanwhile_is_asked_for_no_more(
    rig: Rig, server: Server, listeners: dict[str, socket.socket]
) -> None:
    """Its query would be repeated to this server; a query tells the name to whoever owns it."""
    sandbox = rig.sandboxes["sb1"]
    with sandbox.dial("leak0.a.test", 22):
        until(lambda: server.asked == 2)  # the repeat comes while it is allowed
    with sandbox.dial("leak1.a.test", 22) as sock:
        until(lambda: server.asked == 3)
        try:
            rig.policy("sb1", {"host": "*.b.test", "ports": [22]})
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
            with pytest.raises(AssertionError):
                until(lambda: server.asked > 3, 2 * lookup.TRY_S)
        finally:
            rig.policy("sb1", {"host": "*.a.test", "ports": [22]})
    server.answer = lambda query: [plain(query, WORLD + "10")]
    reaches(rig, "leak1.a.test", listeners[WORLD + "10"])


def test_who_is_cut_off_ends_no_lookup_of_others(rig: Rig, server: Server, listeners: dict[str, socket.socket]) -> None:
    go_on = threading.Event()

    def answers(query: bytes) -> list[bytes]:
        go_on.wait(20)
        return [plain(query, WORLD + "10")]

    def asked_together() -> int:
        """How many queries the two have needed, of whom the first is cut off."""
        go_on.clear()
        before = server.asked
        rig.policy("sb2", {"host": "*.a.test", "ports": [22]})
        with rig.sandboxes["sb2"].dial("both.a.test", 22) as first:
            until(lambda: server.asked > before)
            with rig.sandboxes["sb1"].dial("both.a.test", 22):
                until(lambda: rig.counters("sb1")["open"] == 1)
                rig.policy("sb2", {"host": "*.b.test", "ports": [22]})
                with pytest.raises(ConnectionResetError):
                    first.recv(1)
                go_on.set()
                listeners[WORLD + "10"].accept()[0].close()
        return server.asked - before

    server.answer = answers
    rig.attach("sb2", {"host": "*.a.test", "ports": [22]})
    # Two now and then: the second is counted as open a moment before it waits for the answer, and a query is repeated
    # after `TRY_S`. Without sharing it would be two each time.
    assert 1 in (asked_together() for _ in range(10))


def test_an_answer_is_kept_for_its_time_and_no_longer(
    rig: Rig, server: Server, listeners: dict[str, socket.socket]
) -> None:
    server.answer = lambda query: [plain(query, WORLD + "10", ttl=1)]
    began = time.monotonic()
    for _ in range(3):
        reaches(rig, "kept.a.test", listeners[WORLD + "10"])
    if time.monotonic() - began < 0.9:
        assert server.asked == 1
    server.answer = lambda query: [plain(query, WORLD + "11", ttl=0)]

    def moved() -> bool:
        with rig.sandboxes["sb1"].dial("kept.a.test", 22):
            listeners[WORLD + "11"].settimeout(0.1)
            try:
                listeners[WORLD + "11"].accept()[0].close()
            except TimeoutError:
                return False
        return True

    until(moved, 20)
    asked = server.asked
    listeners[WORLD + "11"].settimeout(20)
    for _ in range(3):
        reaches(rig, "kept.a.test", listeners[WORLD + "11"])
    assert server.asked == asked + 3, "an answer with a time of 0 was kept"


def test_a_failure_is_not_kept(rig: Rig, server: Server, listeners: dict[str, socket.socket]) -> None:
    server.answer = lambda query: [records(query, flags=0x8182)]
    with counted(rig, "lookup_failed"):
        assert rig.sandboxes["sb1"].is_reset("later.a.test", 22)
    server.answer = lambda query: [plain(query, WORLD + "10")]
    reaches(rig, "later.a.test", listeners[WORLD + "10"])


def test_the_next_server_is_asked_and_resolv_conf_names_them_where_nobody_else_does() -> None:
    with Rig(upstream_dns=[]) as rig:
        for address in (DEAD, SERVER):
            rig.world.run("ip", "addr", "add", f"{address}/24", "dev", "w0")
        rig.attach("sb1", {"host": "*.a.test", "ports": [22]})
        with counted(rig, "lookup_failed"):
            assert rig.sandboxes["sb1"].is_reset("x.a.test", 22)
        (rig.hosts.parent / "resolv.conf").write_text(f"nameserver {DEAD}\nnameserver {SERVER}\n")
        with rig.listen(WORLD + "10", 22) as listener, contextlib.closing(Server(rig)) as server:
            listener.settimeout(0.2)
            server.answer = lambda query: [plain(query, WORLD + "10")]

            def reached() -> bool:
                try:
                    reaches(rig, "x.a.test", listener)
                except (ConnectionResetError, TimeoutError):
                    return False
                return True

            until(reached)
