"""Ends that can't be stored at first: nobody is told a lie, and what nobody waits for is tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness import bench

from bellglass import errors
from bellglass.model import TerminationReason
from bellglass.node.journal import SandboxRow


def fail_once(node: Any) -> list[str]:
    """The next write to the journal fails; answers what the node's table said of the sandbox at that moment."""
    sandboxes, seen = node.node.sandboxes, []
    put = sandboxes.journal.put

    async def failing(row: SandboxRow, *events: Any) -> None:
        sandboxes.journal.put = put
        seen.append(sandboxes.row_table[row.id].state)
        raise OSError(5, "Input/output error")

    sandboxes.journal.put = failing
    return seen


def test_an_end_by_itself_is_tried_again(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            sandboxes = node.node.sandboxes
            seen = fail_once(node)
            sandboxes.end_soon(sandboxes.live(box.id, 1), TerminationReason.LIFETIME, None)
            async with asyncio.timeout(10):
                while not sandboxes.row(box.id, 1).reclaimed:
                    await asyncio.sleep(0.01)
            assert seen == ["running"], "it was called ending before that was stored"
            assert sandboxes.row(box.id, 1).reason == "lifetime"

    run(scenario())


def test_a_delete_that_could_not_be_stored_has_not_happened(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            seen = fail_once(node)
            with pytest.raises(errors.BellglassError):
                await box.call("sandbox.delete")
            assert seen == ["running"]
            assert (await box.exec("true"))["execution"]["exit_code"] == 0
            await box.call("sandbox.delete")
            with pytest.raises(errors.SandboxGone):
                await box.exec("true")

    run(scenario())


@pytest.mark.parametrize("step", ["confirm", "reclaim"])
def test_what_follows_a_death_is_tried_again(run, step) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            sandboxes = node.node.sandboxes
            put, writes = sandboxes.journal.put, []

            async def failing(row: SandboxRow, *events: Any) -> None:
                writes.append(row.state)
                if len(writes) == (2 if step == "confirm" else 3):
                    raise OSError(5, "Input/output error")
                await put(row, *events)

            sandboxes.journal.put = failing
            await box.call("sandbox.delete")
            await sandboxes.wait_reclaimed()
            assert sandboxes.row(box.id, 1).reclaimed
            ended = [event.kind for event in await sandboxes.journal.events(0)]
            assert [kind for kind in ended if kind != "sandbox.started"] == ["sandbox.ended", "sandbox.reclaimed"]

    run(scenario())
