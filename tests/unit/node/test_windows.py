"""Output's offsets and windows over links that break."""

from __future__ import annotations

import pytest

from bellglass.node.executions.windows import Incoming
from bellglass.wire.frames import FrameError


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
