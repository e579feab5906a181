"""The agent's streams: windows, links that break, what is sent again."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from bellglass.wire import guest
from bellglass.wire.frames import encode
from bellglass.wire.guest import GuestType

from .conftest import Peer, resident_bytes


def test_stdin_and_its_absence(peer: Peer) -> None:
    data = os.urandom(3_000_000)
    assert peer.run("cat", input=data).stdout == data
    assert peer.run("cat").stdout == b""  # no stdin: /dev/null, not the agent's own


def test_stdin_to_a_program_that_does_not_read(peer: Peer) -> None:
    done = peer.run("true", input=b"x" * 2_000_000)
    assert done.exit is not None and done.exit.exit_code == 0


def test_stdin_window_is_enforced(peer: Peer) -> None:
    stream = peer.start("sleep", "60", stdin=True)
    peer.until(lambda: stream.pid is not None)
    for offset in range(0, guest.WINDOW_BYTES, 65536):
        peer.send(guest.encode_data(stream.id, 0, offset, b"x" * 65536))
    peer.until(lambda: stream.stdin_acked >= 65536)  # what the pipe itself took
    peer.send(encode(GuestType.PING, 0, b"alive"))
    peer.until(lambda: peer.pongs)
    peer.send(guest.encode_data(stream.id, 0, guest.WINDOW_BYTES, b"x" * 200_000))
    with pytest.raises((EOFError, ConnectionResetError)):
        while True:
            peer.step()


def test_background_child_holds_the_pipe(peer: Peer) -> None:
    begin = time.monotonic()
    done = peer.run("sh", "-c", "(sleep 2; echo late) & echo hi")
    assert done.stdout == b"hi\n" and done.exit is not None and done.exit.exit_code == 0
    assert 0.15 < time.monotonic() - begin < 1.5


def test_output_written_after_the_exit_but_soon_is_kept(peer: Peer) -> None:
    # Each line renews the 0.2 s; together they take twice that.
    script = "(for i in 1 2 3 4 5 6 7 8; do sleep 0.05; echo $i; done) & echo hi"
    assert peer.run("sh", "-c", script).stdout == b"hi\n1\n2\n3\n4\n5\n6\n7\n8\n"


def test_last_line_is_never_lost(peer: Peer) -> None:
    for _ in range(100):
        assert peer.run("seq", "1", "20000").stdout.endswith(b"\n20000\n")


def test_unacknowledged_output_blocks_the_writer(peer: Peer) -> None:
    peer.run("true")
    peer.acks = False
    stream = peer.start("head", "-c", "400000000", "/dev/zero")
    peer.until(lambda: stream.received[1] == guest.WINDOW_BYTES)
    with pytest.raises(TimeoutError):
        peer.step(0.5)
    assert resident_bytes(peer.agent.pid) < 2_500_000
    peer.acks, stream.keep = True, False
    peer.acknowledge(stream, 1)
    peer.wait(stream, 60)
    assert stream.received[1] == 400_000_000
    assert resident_bytes(peer.agent.pid) < 2_500_000


def test_several_at_once(peer: Peer) -> None:
    streams = [peer.start("sh", "-c", f"seq 1 5000; echo {i} >&2") for i in range(30)]
    for i, stream in enumerate(streams):
        peer.wait(stream)
        assert stream.stdout.endswith(b"\n5000\n") and stream.stderr == f"{i}\n".encode()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_replay_after_a_broken_link_is_exact(peer: Peer) -> None:
    """The node stops reading in the middle, hangs up, and gets the rest from its last acknowledged byte."""
    stream = peer.start("sh", "-c", "seq 1 200000; echo end >&2; exit 3")
    finished = peer.run("echo", "earlier")
    kept = peer.start("sh", "-c", "echo kept; exit 4")
    peer.wait(kept)
    peer.streams.pop(finished.id)
    for link in range(2, 20):
        peer.acks = False
        peer.until(lambda: stream.received[1] > stream.acked[1] or stream.exit is not None)
        peer.acknowledge(stream, 1)
        peer.send(encode(GuestType.PING, 0, b"x"))  # its answer says that the acknowledgement has been read
        peer.pongs.clear()
        peer.until(lambda: peer.pongs)
        peer.hang_up()
        hello = peer.accept()
        assert hello.streams == {stream.id: 16, kept.id: 16}
        assert hello.epoch == link
        peer.acks = True
        peer.until(lambda: kept.exit is not None)
    peer.wait(stream)
    assert stream.stdout == "".join(f"{i}\n" for i in range(1, 200001)).encode()
    assert stream.stderr == b"end\n" and stream.exit is not None and stream.exit.exit_code == 3
    assert kept.stdout == b"kept\n" and kept.exit is not None and kept.exit.exit_code == 4
    assert kept.order.count("EXIT") >= 2  # kept until RELEASE, sent again on each link


def test_program_goes_on_without_a_link(peer: Peer) -> None:
    stream = peer.start("sh", "-c", "echo a; sleep 0.5; echo b; read line; echo got $line", stdin=True)
    peer.until(lambda: stream.stdout == b"a\n")
    peer.send(guest.encode_data(stream.id, 0, 0, b"hel"))
    peer.hang_up()
    time.sleep(1)
    peer.accept()
    # whether the first bytes arrived is not known: sent again from the last acknowledged offset, here 0
    peer.send(guest.encode_data(stream.id, 0, 0, b"hello\n"))
    peer.wait(stream)
    assert stream.stdout == b"a\nb\ngot hello\n"


def test_hello_tells_how_much_input_came(peer: Peer) -> None:
    """A restarted node knows nothing of what the one before it had sent; the program takes nothing for now."""
    stream = peer.start("sh", "-c", "echo up; sleep 1; cksum", stdin=True)
    without = peer.start("sleep", "30")
    data = os.urandom(guest.WINDOW_BYTES)
    peer.until(lambda: stream.stdout == b"up\n")
    assert peer.hello is not None and peer.hello.features & 8
    for start, end in ((0, 100_000), (100_000, 250_000)):
        peer.send(guest.encode_data(stream.id, 0, start, data[start:end]))
        peer.send(encode(GuestType.PING, 0, b"x"))
        peer.pongs.clear()
        peer.until(lambda: peer.pongs)
        peer.hang_up()
        assert peer.accept().inputs == {stream.id: guest.Input(end, False)}
    peer.send(guest.encode_data(stream.id, 0, 250_000, data[250_000:]) + guest.encode_eof(stream.id, 0, len(data)))
    peer.wait(stream)
    peer.hang_up()
    assert peer.accept().inputs == {stream.id: guest.Input(len(data), True)}
    peer.wait(stream)
    expected = subprocess.run(["cksum"], input=data, capture_output=True, check=True).stdout
    assert stream.stdout == b"up\n" + expected
    peer.send(guest.encode_release(without.id))
