"""Frames that the agent gets: descriptors, garbage, pieces, silence."""

from __future__ import annotations

import os
import struct

import pytest

from bellglass.wire import guest, tlv
from bellglass.wire.frames import encode
from bellglass.wire.guest import GuestType

from .conftest import Peer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_descriptor_is_written_to_before_the_program_runs(peer: Peer) -> None:
    reading, writing = os.pipe()
    try:
        done = peer.run("sh", "-c", "ls /proc/self/fd | wc -l", descriptor=writing)
        assert os.read(reading, 10) == b"0"
        assert done.stdout.strip() == b"4"  # three streams and the folder that ls reads
        long = peer.run("sh", "-c", "echo $#", "sh", *(["x" * 100_000] * 5), descriptor=writing)
        assert os.read(reading, 10) == b"0" and long.stdout == b"5\n"
    finally:
        os.close(reading)
        os.close(writing)


@needs_root  # to look at the descriptors of a process that is not dumpable
def test_descriptors_do_not_pile_up(peer: Peer) -> None:
    peer.run("true")
    before = len(os.listdir(f"/proc/{peer.agent.pid}/fd"))
    reading, writing = os.pipe()
    try:
        for _ in range(20):
            peer.run("true", descriptor=writing, input=b"x")
        peer.send_with_descriptor(encode(GuestType.PING, 0, b"nobody asked for one"), writing)
        peer.until(lambda: peer.pongs)
    finally:
        os.close(reading)
        os.close(writing)
    assert len(os.listdir(f"/proc/{peer.agent.pid}/fd")) == before


def test_start_that_lacks_its_descriptor(peer: Peer) -> None:
    stream = peer._new()
    peer.send(encode(GuestType.START, stream.id, tlv.put(1, "/bin/true"), flags=guest.FLAG_DESCRIPTOR))
    peer.wait(stream)
    assert stream.failure is not None and stream.failure.stage == "protocol"


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack("<IBBHI", 300_000, 18, 0, 0, 1),
        struct.pack("<IBBHI", 0xFFFFFFFF, 16, 0, 0, 1),
        encode(GuestType.DATA, 1, b"abc"),
        encode(GuestType.ACK, 1, struct.pack("<Q", 1 << 60), channel=1),
        encode(GuestType.DATA, 1, struct.pack("<Q", 1 << 63) + b"x"),
        encode(GuestType.EOF, 1, struct.pack("<Q", 5)),
        encode(GuestType.START, 0, tlv.put(1, "x")),
        encode(GuestType.PING, 0, b"x" * 65),
        os.urandom(0) + b"\xff" * 64,
    ],
)
def test_garbage_ends_the_link_and_nothing_else(peer: Peer, garbage: bytes) -> None:
    stream = peer.start("sh", "-c", "echo up; read x; echo $x", stdin=True)
    assert stream.id == 1
    peer.until(lambda: stream.stdout == b"up\n")
    peer.send(garbage)
    with pytest.raises((EOFError, ConnectionResetError)):
        while True:
            peer.step(5)
    peer.hang_up()
    assert peer.accept().streams == {1: 16}
    peer.feed(stream, b"ok\n")
    assert peer.wait(stream).stdout == b"up\nok\n"


def test_unknown_frames_and_streams_are_skipped(peer: Peer) -> None:
    peer.send(encode(200, 9, b"later"))
    peer.send(encode(GuestType.DATA, 77, struct.pack("<Q", 0) + b"x"))
    peer.send(encode(GuestType.RELEASE, 77) + encode(GuestType.ABORT, 77) + encode(GuestType.SIGNAL, 77))
    assert peer.run("echo", "fine").stdout == b"fine\n"


def test_silence_until_welcome(silent_peer: Peer) -> None:
    silent_peer.accept(welcome=False)
    with pytest.raises(TimeoutError):
        silent_peer.read(0.3)
    stream = silent_peer._new()
    silent_peer.send(encode(GuestType.START, stream.id, tlv.put(1, "/bin/true")))
    with pytest.raises((EOFError, ConnectionResetError)):
        silent_peer.read(5)


def test_frames_byte_by_byte(peer: Peer) -> None:
    frame = encode(GuestType.PING, 0, b"slowly")
    for i in range(len(frame)):
        peer.send(frame[i : i + 1])
    peer.until(lambda: peer.pongs == [b"slowly"])
