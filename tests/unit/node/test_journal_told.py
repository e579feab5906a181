"""When the journal says that it has grown: events that nobody waits for are told together, all others at once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from bellglass.node.journal import TOLD_TOGETHER_S, Journal, SandboxRow

ROW = SandboxRow(
    id="sb" + "a" * 20, generation=1, project_id="p", spec={}, driver="fake", state="running", cpu_ids=(0, 1)
)
STARTED, RECLAIMED, FROZEN = ("sandbox.started", {}), ("sandbox.reclaimed", {}), ("sandbox.frozen", {})
ENDED = {reason: ("sandbox.ended", {"reason": reason}) for reason in ("user", "lifetime", "oom")}


@pytest.fixture
def with_journal(run, tmp_path):
    def go(scenario) -> None:
        async def work() -> None:
            journal = await Journal.open(tmp_path / "journal.db")
            try:
                await scenario(journal)
            finally:
                journal.close()

        run(work())

    return go


def test_what_an_answer_has_told_shares_a_batch(with_journal) -> None:
    async def scenario(journal: Journal) -> None:
        grown, began = journal.grown(), time.monotonic()
        for event in (STARTED, ENDED["user"], RECLAIMED):
            await journal.put(ROW, event)
            assert not grown.is_set() or time.monotonic() - began >= TOLD_TOGETHER_S
        await asyncio.wait_for(grown.wait(), 10)
        assert time.monotonic() - began >= TOLD_TOGETHER_S * 0.9
        assert [event.kind for event in await journal.events(0)] == [
            *("sandbox.started", "sandbox.ended", "sandbox.reclaimed")
        ]
        assert not journal.grown().is_set()

    with_journal(scenario)


@pytest.mark.parametrize("event", [ENDED["lifetime"], ENDED["oom"], FROZEN])
def test_what_only_the_journal_tells_is_told_at_once(with_journal, event) -> None:
    async def scenario(journal: Journal) -> None:
        grown = journal.grown()
        await journal.put(ROW, STARTED)
        await journal.put(ROW, event)
        assert grown.is_set(), "before put has returned, and with it what waited"
        assert len(await journal.events(0)) == 2
        later = journal.grown()
        with pytest.raises(TimeoutError):  # what was told is not told again
            await asyncio.wait_for(later.wait(), TOLD_TOGETHER_S * 2)
        await journal.note([(ROW.id, 1, "sandbox.thawed", {})])
        assert later.is_set()

    with_journal(scenario)


def test_a_row_is_read_as_it_was_put(with_journal) -> None:
    row = replace(ROW, about={"labels": {"a": "b"}}, driver_state=b"\0\xff", disk_kept=True)

    async def scenario(journal: Journal) -> None:
        await journal.put(row)
        assert await journal.sandboxes() == [row]

    with_journal(scenario)
