"""Refusals on their way into the journal: told once, counted, and bounded whatever a sandbox does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bellglass.errors import NoCapacity
from bellglass.node.journal import REFUSED, Event, Journal, SandboxRow
from bellglass.node.net import refusals as module
from bellglass.node.net.refusals import MOST_OF_SANDBOX, MOST_TOGETHER, Refusals
from bellglass.server.cluster.journal import MAX_LINE

HOSTILE, HONEST = "sb" + "h" * 20, "sb" + "o" * 20


def row(sandbox_id: str) -> SandboxRow:
    return SandboxRow(id=sandbox_id, generation=3, project_id="pj", spec={}, driver="fake", state="running")


@asynccontextmanager
async def opened(
    folder: Path, check: Callable[[], object] = lambda: None
) -> AsyncIterator[tuple[Refusals, Journal, dict[str, SandboxRow]]]:
    journal = await Journal.open(folder / "journal.db")
    rows = {sandbox_id: row(sandbox_id) for sandbox_id in (HOSTILE, HONEST)}
    refusals = Refusals(journal, rows, check)
    refusals.start()
    try:
        async with asyncio.timeout(60):
            yield refusals, journal, rows
    finally:
        await refusals.close()
        journal.close()


def event(sandbox_id: str, host: str | None = "evil.example", **more: Any) -> dict[str, Any]:
    found = {"time": "2026-11-30T00:00:00.123Z", "sandbox": sandbox_id, "kind": "dns", "host": host, "address": None}
    return {**found, "port": None, "reason": "name_not_allowed", "rule": "deny", **more}


async def journalled(journal: Journal, count: int, after: int = 0) -> list[Event]:
    """The next ones, once there are so many."""
    while True:
        grown = journal.grown()
        found = await journal.events(after)
        if len(found) >= count:
            return found
        await grown.wait()


def test_one_is_told_and_repeats_are_counted(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (refusals, journal, _):
            refusals.note(event(HONEST))
            (first,) = await journalled(journal, 1)
            assert (first.sandbox_id, first.kind, first.generation) == (HONEST, REFUSED, 3)
            assert first.body["left_out"] == 0
            assert first.body["refusals"] == [
                {
                    "at": "2026-11-30T00:00:00.123000Z", "protocol": "dns", "port": None, "count": 1,
                    "host": "evil.example", "address": None, "reason": "name_not_allowed", "rule": "deny",
                }
            ]  # fmt: skip
            for _ in range(5):
                refusals.note(event(HONEST))
            refusals.note(event(HONEST, kind="tcp", port=443, suppressed=7))
            (second,) = await journalled(journal, 1, first.seq)
            assert [(one["protocol"], one["count"]) for one in second.body["refusals"]] == [("dns", 5), ("tcp", 1)]
            assert second.body["left_out"] == 7

    asyncio.run(work())


def test_a_flood_costs_a_count_and_nobody_elses_place(tmp_path: Path) -> None:
    many = 100_000

    async def work() -> None:
        async with opened(tmp_path) as (refusals, journal, rows):
            crowd = [f"sb{i:020d}" for i in range(200)]
            rows.update({sandbox_id: row(sandbox_id) for sandbox_id in crowd})
            for i in range(many):
                refusals.note(event(HOSTILE, f"h{i}.example"))
            for sandbox_id in crowd:
                for i in range(MOST_OF_SANDBOX):
                    refusals.note(event(sandbox_id, f"c{i}.example"))
            refusals.note(event(HONEST))
            await refusals.flush()
            found = {one.sandbox_id: one.body for one in await journalled(journal, len(rows))}
            assert len(found[HONEST]["refusals"]) == 1
            assert found[HONEST]["left_out"] == 0
            assert len(found[HOSTILE]["refusals"]) + found[HOSTILE]["left_out"] == many
            assert sum(len(body["refusals"]) for body in found.values()) <= MOST_TOGETHER

    asyncio.run(work())


def test_an_event_is_never_longer_than_the_server_takes(tmp_path: Path) -> None:
    """One that was would come again and again, and nothing behind it would ever reach the server."""
    odd = ("\U0001f980" * 300, "\0" * 300, "'" * 300, '"' * 300, "\\" * 300, "\ud800" * 300)

    async def work() -> None:
        async with opened(tmp_path) as (refusals, journal, _):
            for number in range(MOST_OF_SANDBOX):
                text = odd[number % len(odd)]
                refusals.note(event(HOSTILE, f"{number}{text}", rule=text, reason=text, address=text))
            refusals.note(event(HONEST, "it's.example"))
            await refusals.flush()
            found = {one.sandbox_id: one for one in await journalled(journal, 2)}
            assert len(found[HOSTILE].body["refusals"]) == MOST_OF_SANDBOX
            assert len(found[HOSTILE].line()) < MAX_LINE
            assert found[HONEST].body["refusals"][0]["host"] == "it's.example"

    asyncio.run(work())


def test_what_the_server_does_not_take_in_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 2000)
    monkeypatch.setattr(module, "BLOCKED_S", 0.05)
    monkeypatch.setattr(module, "TOGETHER_S", 0.01)

    async def work() -> None:
        async with opened(tmp_path) as (refusals, journal, _):
            for i in range(100):
                refusals.note(event(HOSTILE, f"h{i}.example"))
                await refusals.flush()
            held = await journal.events(0)
            assert 1 <= len(held) < 30
            assert await journal.unread_bytes(REFUSED) < 4000
            assert len(held) == len(await journal.events(0))
            await journal.acknowledge(held[-1].seq)
            (late,) = await journalled(journal, 1, held[-1].seq)
            assert late.body == {"refusals": [], "left_out": 100 - len(held)}
            await journal.acknowledge(late.seq)
            await journal.forget_events("2000", 10**6)
            assert await journal.events(0) == [], "what the server has is not kept"

    asyncio.run(work())


def test_the_last_of_a_full_disk_is_not_for_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKED_S", 0.05)
    is_low = True

    def check() -> None:
        if is_low:
            raise NoCapacity("the disk is low", details={"resource": "disk"})

    async def work() -> None:
        nonlocal is_low
        async with opened(tmp_path, check) as (refusals, journal, rows):
            refusals.note(event(HONEST))
            refusals.note(event(HOSTILE))
            assert not await refusals.flush()
            assert await journal.events(0) == []
            del rows[HOSTILE]
            is_low = False
            (told,) = await journalled(journal, 1)
            assert (told.sandbox_id, told.body) == (HONEST, {"refusals": [], "left_out": 1})

    asyncio.run(work())


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"host": "x" * 5000}, {"host": "x" * 255}),
        ({"host": "\ud800\0"}, {"host": "\\ud800\\x00"}),
        ({"host": 5, "address": ["a"], "reason": {}, "rule": None}, {"host": None, "address": None, "reason": None}),
        ({"port": 70000}, {"port": None}),
        ({"port": True}, {"port": None}),
        ({"kind": ["tcp"]}, {"protocol": None}),
        ({"time": "2026-11-30T01:00:00+01:00"}, {"at": "2026-11-30T00:00:00.000000Z"}),
    ],
)
def test_nothing_is_believed_to_have_its_form(tmp_path: Path, given: dict[str, Any], kept: dict[str, Any]) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (refusals, journal, _):
            refusals.note({"sandbox": "sb" + "x" * 20})
            refusals.note({"sandbox": None})
            refusals.note({**event(HONEST), "time": "yesterday", "suppressed": -4, **given})
            (told,) = await journalled(journal, 1)
            (refusal,) = told.body["refusals"]
            assert {name: refusal[name] for name in kept} == kept
            assert refusal["at"] > "2026-"
            assert told.body["left_out"] == 0

    asyncio.run(work())
