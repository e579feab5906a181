"""Ends on a disk so full that the journal can't take them: first the kill, which makes the room, then the record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness import Bench, bench
from pool_calls import apply, members, pool, ready

from bellglass import errors
from bellglass.ballast import disk_full
from bellglass.node.drivers.fake_groups import alive
from bellglass.node.journal import SandboxRow


class FullJournal:
    """Takes nothing of a machine until its disk was given back."""

    def __init__(self, node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: list[str] = []
        self._put = node.node.journal.put
        self._handles = {handle.sandbox_id: handle for handle in node.driver.handles}
        monkeypatch.setattr(node.node.journal, "put", self.put)

    async def put(self, row: SandboxRow, *events: Any) -> None:
        if (handle := self._handles.get(row.id)) is not None and handle._scratch.exists():
            self.refused.append(row.state)
            raise disk_full()
        await self._put(row, *events)


def test_a_delete_kills_and_is_stored_with_the_room_that_it_made(run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            handle = node.driver.handles[0]
            journal = FullJournal(node, monkeypatch)
            answer = await node.delete(box)
            assert answer["ended_at"] and not alive(handle.pid, handle._start_ticks), "told when it is dead"
            with pytest.raises(errors.SandboxGone):
                await box.exec("true")
            await node.node.sandboxes.wait_reclaimed()
            assert journal.refused == ["ending", "ended"]
            stored = {row.id: row for row in await node.node.journal.sandboxes()}[box.id]
            assert (stored.state, stored.reason, stored.reclaimed) == ("ended", "user", True)
            kinds = [event.kind for event in await node.node.journal.events(0)]
            assert kinds == ["sandbox.started", "sandbox.ended", "sandbox.reclaimed"]

    run(scenario())


def test_a_member_of_a_pool_goes_too(run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(1))
            await ready(node, 1)
            handle = node.driver.handles[0]
            journal = FullJournal(node, monkeypatch)
            async with asyncio.timeout(20):
                await node.link.call("pool.drain", {})
            assert members(node) == {} and not alive(handle.pid, handle._start_ticks)
            assert journal.refused == ["draining"] and await node.node.journal.sandboxes() == []
            assert node.node.sandboxes.admission.report()["sandboxes"] == 0

    run(scenario())
