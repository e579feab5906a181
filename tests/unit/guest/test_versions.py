"""The agent and nodes of other releases: frames that it does not know, and a protocol that it does not speak."""

from __future__ import annotations

import os
import struct

import pytest

from bellglass.wire import guest, tlv
from bellglass.wire.frames import MAX_PAYLOAD, encode
from bellglass.wire.guest import GuestType

UNKNOWN_TYPES = sorted(set(range(256)) - {int(kind) for kind in GuestType})


def test_every_unknown_type_is_skipped_by_its_length(peer) -> None:
    for kind in UNKNOWN_TYPES:
        peer.send(encode(kind, kind % 3, b"n" * (kind * 7), channel=kind % 5, flags=0xFFFC))
    peer.send(encode(250, 0, b"n" * MAX_PAYLOAD))
    assert peer.run("echo", "fine").stdout == b"fine\n"


def test_unknown_types_between_the_frames_of_a_stream_change_nothing(peer) -> None:
    stream = peer.start("cat", stdin=True)
    sent = 0
    for piece in (b"one ", b"two ", b"three\n"):
        peer.send(encode(61, stream.id, b"tomorrow's"))
        peer.send(guest.encode_data(stream.id, 0, sent, piece))
        peer.send(encode(62, stream.id))
        sent += len(piece)
    peer.send(guest.encode_eof(stream.id, 0, sent))
    assert peer.wait(stream).stdout == b"one two three\n"


@pytest.mark.parametrize(
    "welcome", [guest.encode_welcome("test", 2), encode(GuestType.WELCOME, 0, tlv.put(3, "no version"))]
)
def test_a_welcome_of_another_protocol_ends_the_link_but_no_execution(peer, welcome: bytes) -> None:
    stream = peer.start("sh", "-c", "echo up; read x; echo $x", stdin=True)
    peer.until(lambda: stream.stdout == b"up\n")
    peer.hang_up()
    peer.accept(welcome=False)
    peer.send(welcome)
    with pytest.raises((EOFError, ConnectionResetError)):
        peer.read(5)
    peer.hang_up()
    assert peer.accept().streams == {stream.id: 16}, "it dials again, for a node that speaks its protocol"
    peer.feed(stream, b"still here\n")
    assert peer.wait(stream).stdout == b"up\nstill here\n"


def test_fields_that_a_newer_node_adds_are_skipped(silent_peer) -> None:
    silent_peer.accept(welcome=False)
    silent_peer.send(encode(GuestType.WELCOME, 0, tlv.put(99, "new") + tlv.put(1, 1) + tlv.put(500, b"\0" * 999)))
    start = tlv.put(1, "/bin/echo") + tlv.put(200, "new") + tlv.put(1, "hi") + tlv.put(4, str(os.geteuid()))
    stream = silent_peer._new()
    silent_peer.send(encode(GuestType.START, stream.id, start) + struct.pack("<IBBHI", 0, 199, 9, 0xFFFF, stream.id))
    assert silent_peer.wait(stream).stdout == b"hi\n"
