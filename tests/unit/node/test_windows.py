"""Offsets and windows over links that break."""

from __future__ import annotations

import asyncio

import pytest

from bellglass.errors import Conflict
from bellglass.node.executions.windows import Incoming, StdinFeed
from bellglass.wire import guest
from bellglass.wire.frames import FrameError, FrameReader
from bellglass.wire.guest import GuestType


def test_acknowledgements_come_in_steps() -> None:
    incoming = Incoming(1)
    assert bytes(incoming.accept(0, memoryview(b"abc"))) == b"abc" and incoming.due() is None
    incoming.accept(3, memoryview(b"x" * 70_000))
    assert incoming.due() == 70_003 and incoming.due() is None


def test_repeated_bytes_are_dropped_and_acknowledged_at_once() -> None:
    incoming = Incoming(1)
    incoming.accept(0, memoryview(b"x" * 100_000))
    assert incoming.due() == 100_000
    incoming.accept(100_000, memoryview(b"y" * 10))
    incoming.link_restored()
    assert bytes(incoming.accept(70_000, memoryview(b"x" * 30_000))) == b""
    assert incoming.due() == 100_000, "never beyond what this link has carried"
    assert bytes(incoming.accept(100_000, memoryview(b"y" * 10 + b"new"))) == b"new"
    assert incoming.due() == 100_013


@pytest.mark.parametrize(("offset", "size"), [(1, 1), (0, 0), (2**64 - 1, 1)])
def test_gaps_and_nothing_are_refused(offset, size) -> None:
    incoming = Incoming(1)
    incoming.accept(0, memoryview(b"x"))
    incoming.accept(1, memoryview(b"x"))
    with pytest.raises(FrameError):
        incoming.accept(offset + 2, memoryview(b"x" * size))


def test_the_window_is_the_most() -> None:
    incoming = Incoming(1)
    incoming.accept(0, memoryview(b"x" * 262_144))
    with pytest.raises(FrameError, match="beyond"):
        incoming.accept(262_144, memoryview(b"x"))
    assert incoming.due() == 262_144
    incoming.accept(262_144, memoryview(b"x"))


def test_the_end_is_where_the_bytes_end() -> None:
    incoming = Incoming(1)
    incoming.accept(0, memoryview(b"abc"))
    with pytest.raises(FrameError):
        incoming.end(2)
    incoming.end(3)
    with pytest.raises(FrameError):
        incoming.accept(3, memoryview(b"x"))
    incoming.link_restored()
    assert bytes(incoming.accept(0, memoryview(b"abc"))) == b"", "sent again over the next link, with its end"
    incoming.end(3)


class Sent:
    def __init__(self) -> None:
        self.frames: list = []
        self.reader = FrameReader()

    def __call__(self, frame: bytes) -> bool:
        self.frames += self.reader.feed(frame)
        return True

    def data(self) -> bytes:
        return b"".join(bytes(f.payload[8:]) for f in self.frames if f.type == GuestType.DATA)

    def ended_at(self) -> int | None:
        ends = [guest.decode_offset(f.payload)[0] for f in self.frames if f.type == GuestType.EOF]
        return ends[-1] if ends else None


def encode(stream_id: int, offset: int, data: bytes) -> bytes:
    return guest.encode_data(stream_id, 0, offset, data)


def test_initial_stdin_waits_for_the_window_and_is_sent_again() -> None:
    sent, body = Sent(), bytes(range(256)) * 2000
    feed = StdinFeed(sent, body, stays_open=False)
    feed.pump(1, link_is_up=True)
    assert sent.data() == body[:262_144] and sent.ended_at() is None
    feed.acknowledged(100_000)
    feed.pump(1, link_is_up=True)
    assert len(sent.data()) == 362_144
    sent.frames.clear()
    feed.restart(encode, 1)
    feed.pump(1, link_is_up=True)
    assert sent.data() == body[100_000:362_144]
    feed.acknowledged(362_144)
    feed.pump(1, link_is_up=True)
    assert sent.data() == body[100_000:] and sent.ended_at() == len(body)
    with pytest.raises(FrameError):
        feed.acknowledged(len(body) + 1)
    with pytest.raises(Conflict):
        feed.check_open()


def test_a_writer_that_gives_up_takes_its_rest_back(run) -> None:
    async def scenario() -> None:
        sent = Sent()
        feed = StdinFeed(sent, None, stays_open=True)

        def pump() -> None:
            feed.pump(1, link_is_up=True)

        await feed.write(b"one", pump)
        writer = asyncio.create_task(feed.write(b"w" * 300_000, pump))
        await asyncio.sleep(0.01)
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        feed.acknowledged(262_144)
        await feed.write(b"two", pump)
        assert sent.data() == b"one" + b"w" * (262_144 - 3) + b"two"
        waiting = asyncio.create_task(feed.write(b"z" * 600_000, pump))
        await asyncio.sleep(0.01)
        feed.close(Conflict("over"))
        with pytest.raises(Conflict, match="over"):
            await waiting

    run(scenario())
