"""The agent's connections to ports: both loopbacks, both directions, each end's end, resets, windows, limits."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from bellglass.wire import guest, tlv
from bellglass.wire.frames import encode
from bellglass.wire.guest import WINDOW_BYTES, GuestType

from .conftest import Peer, Stream, resident_bytes

DIALS_MAX = 128
WAIT_S = 20.0
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        server.settimeout(WAIT_S)
        yield server


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def connected(peer: Peer, server: socket.socket) -> tuple[Stream, socket.socket]:
    stream = peer.dial(port_of(server))
    program = server.accept()[0]
    program.settimeout(WAIT_S)
    peer.until(lambda: stream.family is not None)
    return stream, program


def read_all(program: socket.socket) -> bytes:
    with program.makefile("rb") as file:
        return file.read()


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return port_of(server)


def test_bytes_both_ways_and_each_end(peer: Peer, listener: socket.socket) -> None:
    question, answer = os.urandom(700_000), os.urandom(900_000)
    stream, program = connected(peer, listener)
    got: list[bytes] = []

    def serve() -> None:
        got.append(read_all(program))
        program.sendall(answer)
        program.close()

    thread = threading.Thread(target=serve)
    thread.start()
    peer.feed(stream, question)
    peer.wait(stream)
    thread.join()
    assert (stream.family, stream.failure) == (4, None)
    assert got == [question] and stream.stdout == answer
    assert stream.stdin_acked == len(question)


def test_the_program_may_end_first_and_go_on_reading(peer: Peer, listener: socket.socket) -> None:
    stream, program = connected(peer, listener)
    program.sendall(b"all I have")
    program.shutdown(socket.SHUT_WR)
    peer.until(lambda: 1 in stream.eof)
    assert not stream.done
    peer.feed(stream, b"and yet")
    assert read_all(program) == b"and yet"
    peer.wait(stream)
    assert stream.failure is None and stream.stdout == b"all I have"
    program.close()


def test_ipv6_loopback_when_127_refuses(peer: Peer) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        server.settimeout(WAIT_S)
        stream, program = connected(peer, server)
        program.close()
        peer.feed(stream, b"")
        peer.wait(stream)
        assert (stream.family, stream.failure) == (6, None)


def test_refused_at_once_with_the_errno(peer: Peer) -> None:
    stream = peer.dial(refused_port())
    peer.wait(stream)
    assert stream.failure is not None and stream.order == ["FAILED"]
    assert (stream.failure.stage, stream.failure.errno) == ("connect", 111)


@pytest.mark.parametrize("payload", [b"", tlv.put(1, 0), tlv.put(1, 65536), tlv.put(1, b"12"), b"\x01\x00\xff"])
def test_what_is_no_port(peer: Peer, payload: bytes) -> None:
    stream = peer.dial(refused_port())
    peer.wait(stream)
    odd = peer._new()
    odd.dial = True
    peer.send(encode(GuestType.DIAL, odd.id, payload))
    peer.wait(odd)
    assert odd.failure is not None and odd.failure.stage == "protocol"


def test_a_reset_is_told_behind_what_came_before(peer: Peer, listener: socket.socket) -> None:
    stream, program = connected(peer, listener)
    program.sendall(b"last words")
    peer.until(lambda: stream.stdout == b"last words")
    program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    program.close()
    peer.wait(stream)
    assert stream.failure is not None and 1 not in stream.eof
    assert (stream.failure.stage, stream.failure.errno) == ("reset", 104)


def test_a_reset_that_a_write_meets_first_is_no_end(peer: Peer, listener: socket.socket) -> None:
    stream, program = connected(peer, listener)
    peer.feed(stream, b"never read", eof=False)
    peer.until(lambda: stream.stdin_acked == 10)
    program.close()  # with unread bytes: the kernel resets
    peer.wait(stream)
    assert stream.failure is not None and stream.failure.stage == "reset"


def test_abort_release_and_a_lost_link_reset_the_program(peer: Peer, listener: socket.socket) -> None:
    stream, aborted = connected(peer, listener)
    peer.send(guest.encode_abort(stream.id))
    peer.wait(stream)
    assert stream.failure is not None and stream.failure.stage == "aborted"
    stream, released = connected(peer, listener)
    peer.release(stream)
    stream, lost = connected(peer, listener)
    peer.hang_up()
    assert peer.accept().streams == {}
    for program in (aborted, released, lost):
        with pytest.raises(ConnectionResetError):
            program.recv(1)
        program.close()
    assert peer.run("echo", "alive").stdout == b"alive\n"


def test_a_program_that_does_not_read_holds_the_sender(peer: Peer, listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream, program = connected(peer, listener)
    data = os.urandom(WINDOW_BYTES)
    sent = 0
    while sent - stream.stdin_acked < WINDOW_BYTES:  # until the kernel's buffers take no more
        peer.send(guest.encode_data(stream.id, 0, sent, data[: WINDOW_BYTES - (sent - stream.stdin_acked)]))
        sent += WINDOW_BYTES - (sent - stream.stdin_acked)
        token = os.urandom(8)
        peer.send(encode(GuestType.PING, 0, token))
        peer.until(lambda token=token: token in peer.pongs)
        if sent > 64 * WINDOW_BYTES:
            pytest.fail("the agent takes bytes that nobody reads")
    assert resident_bytes(peer.agent.pid) < 4 << 20
    total = 0
    while total < sent:
        total += len(program.recv(1 << 16))
    peer.until(lambda: stream.stdin_acked == sent)
    program.close()


def test_a_reader_that_does_not_acknowledge_holds_the_program(peer: Peer, listener: socket.socket) -> None:
    stream, program = connected(peer, listener)
    peer.acks = False
    program.setblocking(False)
    written = 0
    block = bytes(65536)
    while stream.received[1] < WINDOW_BYTES:
        try:
            written += program.send(block)
        except BlockingIOError:
            peer.step()
    token = os.urandom(8)
    peer.send(encode(GuestType.PING, 0, token))
    peer.until(lambda: token in peer.pongs)
    assert stream.received[1] == WINDOW_BYTES
    peer.acks = True
    peer.acknowledge(stream, 1)
    program.setblocking(True)
    program.close()
    peer.until(lambda: 1 in stream.eof)
    assert stream.eof[1] == written


def test_dials_are_bounded_and_leave_room_for_programs(peer: Peer, listener: socket.socket) -> None:
    streams = [peer.dial(port_of(listener)) for _ in range(DIALS_MAX)]
    programs = [listener.accept()[0] for _ in streams]
    peer.until(lambda: all(stream.family == 4 for stream in streams))
    one_more = peer.dial(port_of(listener))
    peer.wait(one_more)
    assert one_more.failure is not None and one_more.failure.stage == "limit"
    assert peer.run("echo", "room").stdout == b"room\n"
    peer.release(streams.pop())
    peer.release(one_more)
    again = peer.dial(port_of(listener))
    programs.append(listener.accept()[0])
    peer.until(lambda: again.family == 4)
    for program in programs:
        program.close()


@pytest.mark.parametrize("early", ["data", "beyond"])
def test_what_no_honest_node_sends_ends_the_link(peer: Peer, listener: socket.socket, early: str) -> None:
    if early == "data":
        # A listener whose backlog is full: the connection stays half open, so DATA comes before CONNECTED.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            fillers = [socket.socket() for _ in range(3)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            stream = peer.dial(port_of(full))
            peer.send(guest.encode_data(stream.id, 0, 0, b"x"))
            with pytest.raises(EOFError):
                peer.wait(stream)
            for filler in fillers:
                filler.close()
    else:
        stream, program = connected(peer, listener)
        peer.send(guest.encode_data(stream.id, 0, 1, b"behind a gap"))
        with pytest.raises(EOFError):
            peer.wait(stream)
        program.close()
    peer.connection.close()
    peer.streams.clear()
    peer.accept()
    assert peer.run("echo", "alive").stdout == b"alive\n"
