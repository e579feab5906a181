"""What sandboxes have changed when the disk becomes low: written while there is room, the smallest first."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from bellglass.ballast import PIECE_BYTES, Ballast
from bellglass.errors import AgentLost, SandboxGone
from bellglass.node import flushing
from bellglass.node.flushing import ROOM_BYTES, Flushing
from bellglass.wire.guest import FileOp

MIB = 2**20


class Sandbox:
    def __init__(self, name: str, unwritten: int, *errors: Exception) -> None:
        self.sandbox_id = name
        self.unwritten = unwritten
        self.errors = list(errors)
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    def unwritten_bytes(self) -> int:
        return self.unwritten


class Rig:
    """`free` is the host's room; what a sandbox writes takes it."""

    def __init__(self, folder: Path, *sandboxes: Sandbox) -> None:
        self.free = 0
        self.synced: list[str] = []
        self.reserve = Ballast(folder / "reserve", 4 * MIB)
        self.reserve.path.write_bytes(bytes(4 * MIB))
        self.flushing = Flushing(folder, self.reserve, lambda: sandboxes)  # type: ignore[arg-type,return-value]

    def free_bytes(self, folder: Path) -> int:
        return self.free + self.reserve.size_bytes - self.reserve.held_bytes()

    async def settled(self) -> None:
        async with asyncio.timeout(20):
            while not self.flushing.is_settled:
                await asyncio.sleep(0.005)


@pytest.fixture
def rig_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    def make(*sandboxes: Sandbox) -> Rig:
        rig = Rig(tmp_path, *sandboxes)

        class Stream:
            def __init__(self, live: Sandbox, operation: FileOp, path: str, **fields: Any) -> None:
                assert (operation, path) == (FileOp.SYNC, "/")
                self.live = live

            async def __aenter__(self) -> Self:
                if self.live.errors:
                    raise self.live.errors.pop(0)
                return self

            async def __aexit__(self, *_: object) -> None: ...

            async def result(self) -> None:
                self.live.begun.set()
                await self.live.go_on.wait()
                rig.synced.append(self.live.sandbox_id)
                rig.free -= self.live.unwritten
                self.live.unwritten = 0

        monkeypatch.setattr(flushing, "free_bytes", rig.free_bytes)
        monkeypatch.setattr(flushing, "FileStream", Stream)
        monkeypatch.setattr(flushing, "PAUSE_S", 0.01)
        return rig

    return make


def test_the_smallest_are_first_and_the_reserve_is_for_what_has_no_room(run, rig_of, monkeypatch) -> None:
    async def scenario() -> None:
        rig = rig_of(Sandbox("large", 2 * MIB), Sandbox("small", 0), Sandbox("middle", MIB))
        monkeypatch.setattr(flushing, "AT_ONCE", 1)
        rig.flushing.begin()
        await asyncio.sleep(0)
        assert not rig.flushing.is_settled
        rig.flushing.begin()  # once is enough
        await rig.settled()
        assert rig.synced == ["small", "middle", "large"]

    run(scenario())


def test_nothing_of_the_reserve_is_spent_where_there_is_room(run, rig_of) -> None:
    async def scenario() -> None:
        rig = rig_of(Sandbox("one", MIB))
        rig.free = MIB + ROOM_BYTES
        rig.flushing.begin()
        await rig.settled()
        assert rig.synced == ["one"] and rig.reserve.held_bytes() == 4 * MIB

    run(scenario())


def test_what_finds_no_room_waits_for_some(run, rig_of) -> None:
    async def scenario() -> None:
        rig = rig_of(Sandbox("large", 9 * MIB), Sandbox("small", 0))
        rig.flushing.begin()
        async with asyncio.timeout(20):
            while not rig.synced:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert rig.synced == ["small"] and not rig.flushing.is_settled
        assert rig.reserve.held_bytes() == 3 * MIB, "what would not do is not given"
        rig.free = 8 * MIB
        await rig.settled()
        assert rig.synced == ["small", "large"] and rig.reserve.held_bytes() == 2 * MIB
        rig.flushing.end()
        assert not rig.flushing.is_settled
        rig.flushing.begin()
        await rig.flushing.close()
        assert not rig.flushing.is_settled

    run(scenario())


def test_a_node_that_is_out_of_descriptors_goes_on(run, rig_of, monkeypatch) -> None:
    def no_descriptor(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        rig = rig_of(Sandbox("one", 0), Sandbox("other", 0))
        tried, give = [], rig.reserve.give

        def give_later() -> bool:
            tried.append(1)
            return give() if len(tried) > 1 else no_descriptor() > 0

        monkeypatch.setattr(Sandbox, "unwritten_bytes", no_descriptor)
        monkeypatch.setattr(rig.reserve, "give", give_later)
        rig.flushing.begin()
        await rig.settled()
        assert sorted(rig.synced) == ["one", "other"]

    run(scenario())


def test_errors_are_tried_again_and_who_is_gone_is_not(run, rig_of) -> None:
    async def scenario() -> None:
        rig = rig_of(
            Sandbox("lost", 0, AgentLost("no link"), AgentLost("no link")), Sandbox("gone", 0, SandboxGone("x"))
        )
        rig.free = PIECE_BYTES + ROOM_BYTES
        rig.flushing.begin()
        await rig.settled()
        assert rig.synced == ["lost"]

    run(scenario())


def test_a_node_that_ends_writes_the_rest_first(run, rig_of, monkeypatch) -> None:
    monkeypatch.setattr(flushing, "AT_ONCE", 1)
    monkeypatch.setattr(flushing, "PAUSE_S", 3600)

    async def scenario() -> None:
        slow, next_one = Sandbox("slow", 0), Sandbox("next", MIB, AgentLost("no link"))
        rig = rig_of(slow, next_one)
        slow.go_on.clear()
        rig.flushing.begin()
        await slow.begun.wait()
        closing = asyncio.ensure_future(rig.flushing.close())
        await asyncio.sleep(0)
        assert not closing.done() and rig.synced == []
        slow.go_on.set()
        await asyncio.wait_for(closing, 20)
        assert rig.synced == ["slow", "next"], "also what is to be tried again, without the pause"

    run(scenario())


def test_a_node_that_ends_waits_for_no_room_and_for_no_one_that_hangs(run, rig_of, monkeypatch) -> None:
    monkeypatch.setattr(flushing, "CLOSE_S", 0.1)

    async def scenario() -> None:
        hangs, too_large, small = Sandbox("hangs", 1), Sandbox("large", 99 * MIB), Sandbox("small", 0)
        rig = rig_of(hangs, too_large, small)
        hangs.go_on.clear()
        rig.flushing.begin()
        await hangs.begun.wait()
        await asyncio.wait_for(rig.flushing.close(), 20)
        assert rig.synced == ["small"]

        monkeypatch.setattr(flushing, "CLOSE_S", 3600)
        without = rig_of(Sandbox("large", 99 * MIB), Sandbox("small", 0))
        without.flushing.begin()
        await asyncio.wait_for(without.flushing.close(), 20)
        assert without.synced == ["small"]
        await without.flushing.close()

    run(scenario())
