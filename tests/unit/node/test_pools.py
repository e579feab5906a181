"""A node's pools with the fake driver: filling, claims, misses, what gives way, restarts, and what is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import DIGEST, Bench, Box, bench
from node_looks import until
from pool_calls import apply, members, pool, ready, report

from bellglass import errors, ids
from bellglass.node.drivers.fake_groups import alive, start_ticks


async def take(node: Bench, *, has_inputs: bool = False, **more: Any) -> str | None:
    spec = node.sandbox_spec(**more)
    answer = await node.link.call("pool.take", {"spec": spec, "has_inputs": has_inputs})
    return answer["sandbox_id"]


async def claim(node: Bench, **more: Any) -> Box:
    """As the server does it."""
    found = await take(node, **more)
    return await node.create(sandbox_id=found or ids.new_sandbox_id(), **more)


async def drained(node: Bench) -> None:
    await node.link.call("pool.drain", {})
    assert members(node) == {}


def test_a_claim_becomes_a_sandbox_like_any_other(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(2))
            await ready(node, 2)
            # Nobody can see them, or do anything in them.
            assert (await node.link.call("sandbox.list", {}))["sandboxes"] == []
            hidden = {"sandbox_id": next(iter(members(node))), "generation": 1}
            with pytest.raises(errors.NotFound):
                await node.link.call("execution.list", hidden)
            assert await node.link.call("sandbox.delete", hidden) == {"ended_at": None}
            kinds = [event.kind for event in await node.node.journal.events(0)]
            assert kinds == [], "no project has them, so nobody hears of them"

            first = set(members(node))
            box = await claim(node, idle_timeout_s=300.0)
            assert box.id in first
            assert (await box.exec("echo hi"))["stdout"] == "hi\n"
            [listed] = (await node.link.call("sandbox.list", {}))["sandboxes"]
            assert listed["state"] == "running" and listed["sandbox_id"] == box.id and listed["started_at"]
            row = node.node.sandboxes.row(box.id, 1)
            assert row.project_id == "pj" and row.idle_timeout_s == 300.0 and row.spec["env"] == {}
            assert row.expires_at_unix is not None
            events = [json.loads(event.line()) for event in await node.node.journal.events(0)]
            assert [event["kind"] for event in events] == ["sandbox.started"] and events[0]["expires_at"]

            await ready(node, 2)
            now = await report(node)
            assert (now["hits"], sum(now["misses"].values()), now["claimed"]) == (1, 0, 1)
            assert now["template_digest"] == DIGEST and now["problem"] is None
            # Repeating the create finds it: no other member is used up.
            assert (await node.create(sandbox_id=box.id, idle_timeout_s=300.0)).id == box.id
            assert (await report(node))["hits"] == 1

            await node.delete(box)
            await node.node.sandboxes.wait_reclaimed()
            now = await report(node)
            assert now["claimed"] == 0 and box.id not in members(node), "it never goes back"
            await drained(node)
            assert node.node.sandboxes.admission.report()["sandboxes"] == 0
            assert {row.state for row in await node.node.journal.sandboxes()} == {"ended"}

    run(scenario())


def test_misses_are_counted_by_reason(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            assert await take(node) is None, "without a pool nothing is promised"
            await apply(node, pool(1, ceiling=1))
            await ready(node, 1)
            assert await take(node, memory_bytes=300 * 2**20) is None
            assert await take(node, template_digest="1" * 64) is None
            assert await take(node, has_inputs=True) is None
            assert (await report(node))["misses"] == {"empty": 0, "shape": 1, "template": 1, "inputs": 1, "died": 0}
            promised = await take(node)
            assert promised in members(node)
            assert await take(node) is None
            assert (await report(node))["misses"]["empty"] == 1
            await node.link.call("pool.release", {"sandbox_id": promised})
            assert await take(node) == promised, "what was given back is there again"
            await node.link.call("pool.apply", {"pools": [pool(1, ceiling=1)], "anew": True})
            assert await take(node) == promised, "a server that has just come holds no promise"
            await drained(node)

    run(scenario())


def test_no_member_is_promised_twice(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(4))
            await ready(node, 4)
            promised = [found for found in await asyncio.gather(*(take(node) for _ in range(12))) if found]
            assert len(promised) == len(set(promised)) and len(promised) >= 4
            boxes = await asyncio.gather(*(node.create(sandbox_id=found) for found in promised))
            assert (await report(node))["hits"] == len(promised)
            assert len({box.id for box in boxes}) == len(promised)
            await drained(node)

    run(scenario())


def test_a_claimed_one_is_not_anothers_by_its_id(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(1))
            await ready(node, 1)
            box = await claim(node)
            params = {"sandbox_id": box.id, "generation": 1, "spec": node.sandbox_spec(), "inputs": {}}
            assert (await node.link.call("sandbox.create", params | {"project_id": "pj"}))["started_at"]
            with pytest.raises(errors.Conflict):
                await node.link.call("sandbox.create", params | {"project_id": "other"})
            await drained(node)

    run(scenario())


def test_a_refill_steps_back_while_half_of_the_pool_waits(run: Any) -> None:
    async def scenario() -> None:
        async with bench(**{"node.pool_refills": 1}) as node:
            make, specs = node.driver.create, []

            async def create(spec: Any) -> Any:
                specs.append(spec)
                return await make(spec)

            node.driver.create = create  # type: ignore[method-assign]
            await apply(node, pool(3))
            await ready(node, 3)
            await node.create()
            assert [spec.background for spec in specs] == [False, False, True, False]
            await drained(node)

    run(scenario())


def test_a_create_waits_for_a_refill_that_is_nearly_done(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bellglass.node.pools import refills

    async def scenario() -> None:
        async with bench() as node:
            node.node.sandboxes.pools.refills.usual_s = 5.0
            node.driver.faults["create_delay_s"] = 0.5
            await apply(node, pool(1, ceiling=2))
            await until(lambda: len(members(node)) == 1)
            assert await take(node) is None, "a refill that has just begun is not waited for"
            monkeypatch.setattr(refills, "WORTH_PART", 0.0)
            [coming] = members(node)
            first, second = await asyncio.gather(take(node), take(node))
            assert {first, second} == {coming, None}, "it is one create's"
            box = await node.create(sandbox_id=coming)
            assert (await box.exec("echo hi"))["stdout"] == "hi\n"
            now = await report(node)
            assert now["hits"] == 1 and now["misses"]["empty"] == 2
            # One that fails is waited for no longer than it takes.
            node.driver.faults["create"] = "SandboxFailed"
            await until(lambda: any(member.state == "filling" for member in members(node).values()))
            assert await take(node) is None
            node.driver.faults.clear()
            await drained(node)

    run(scenario())


def test_the_ceiling_counts_claimed_ones_too(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(2, ceiling=3))
            await ready(node, 2)
            one, two = await claim(node), await claim(node)
            await ready(node, 1)
            assert (await report(node))["claimed"] == 2
            await node.delete(one)
            await ready(node, 2)
            await node.delete(two)
            await apply(node, pool(0))
            await ready(node, 0)

    run(scenario())


def test_a_member_that_dies_is_replaced_and_never_handed_out(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(1))
            await ready(node, 1)
            [first] = members(node)
            os.kill(members(node)[first].live.handle.pid, signal.SIGKILL)
            await until(lambda: first not in members(node))
            await ready(node, 1)
            # Promised, and dead when the create comes for it: the create gets a machine all the same.
            promised = await take(node)
            assert promised is not None and promised != first
            os.kill(members(node)[promised].live.handle.pid, signal.SIGKILL)
            box = await node.create(sandbox_id=promised)
            assert (await box.exec("echo alive"))["stdout"] == "alive\n"
            now = await report(node)
            assert now["hits"] == 0
            await drained(node)

    run(scenario())


def test_a_member_that_does_not_answer_is_not_handed_out(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bellglass.node.pools import pools

    monkeypatch.setattr(pools, "ANSWER_S", 0.2)

    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(1))
            await ready(node, 1)
            promised = await take(node)
            os.kill(members(node)[promised].live.handle.pid, signal.SIGSTOP)
            box = await node.create(sandbox_id=promised)
            assert (await box.exec("echo alive"))["stdout"] == "alive\n"
            assert (await report(node))["misses"]["died"] == 1
            await drained(node)

    run(scenario())


def test_members_survive_a_restart_of_the_node(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(2))
            await ready(node, 2)
            before = set(members(node))
            box = await claim(node)
            await ready(node, 2)
            kept = set(members(node))
            await node.restart()
            assert set(members(node)) == kept and len(kept - before) == 1
            # What should be is the server's to say: until then nothing is promised, made or given up.
            assert await take(node) is None and len(members(node)) == 2
            await apply(node, pool(2))
            await ready(node, 2)
            assert set(members(node)) == kept and (await report(node))["claimed"] == 1
            await until(lambda: all(member.can_serve() for member in members(node).values()))
            second = await claim(node)
            assert second.id in kept and (await second.exec("echo hi"))["stdout"] == "hi\n"
            assert (await box.exec("echo still"))["stdout"] == "still\n"
            await node.restart()
            await apply(node)  # the pool was deleted meanwhile
            await until(lambda: members(node) == {})

    run(scenario())


def test_a_restart_gives_back_what_was_half_made_or_dead(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(2))
            await ready(node, 2)
            half, dead = members(node).values()
            await node.node.journal.put(replace(half.row, state="filling", driver_state=None))
            pids = [half.live.handle.pid, dead.live.handle.pid]
            ticks = start_ticks(pids[0])
            assert alive(pids[0], ticks)
            await node.stop()
            os.kill(pids[1], signal.SIGKILL)
            await node.start()
            await until(lambda: members(node) == {})
            assert not alive(pids[0], ticks)
            assert await node.node.journal.sandboxes() == []
            assert node.node.sandboxes.admission.report()["sandboxes"] == 0

    run(scenario())


def test_members_give_way_to_a_create_that_would_not_fit(run: Any) -> None:
    async def scenario() -> None:
        pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
        room = {"node.pids_reserve": 0, "node.pids_overcommit": 400 / pid_max}
        async with bench(**room) as node:
            await apply(node, pool(3))
            await ready(node, 3)
            with pytest.raises(errors.NoCapacity):
                await node.create(pids=500)
            assert (await report(node))["ready"] == 3, "giving way would not have helped"
            box = await node.create(pids=200)
            assert (await box.exec("echo hi"))["stdout"] == "hi\n"
            now = await report(node)
            assert now["ready"] == 1 and now["filling"] == 0
            await drained(node)

    run(scenario())


def test_a_pool_that_can_not_be_filled_says_why(run: Any) -> None:
    async def scenario() -> None:
        async with bench(faults={"create": "SandboxFailed"}) as node:
            await apply(node, pool(1))

            async def told() -> bool:
                return (await report(node))["problem"] is not None

            await until(told)
            node.driver.faults.clear()
            await apply(node, pool(1))
            await ready(node, 1)
            assert (await report(node))["problem"] is None
            await apply(node, pool(1, template="none"))
            await until(told)
            assert "none" in (await report(node))["problem"]
            await until(lambda: members(node) == {})

    run(scenario())


def test_another_shape_or_template_replaces_the_members(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            await apply(node, pool(1))
            await ready(node, 1)
            [old] = members(node)
            await apply(node, pool(1, pids=64))
            await until(lambda: old not in members(node))
            await ready(node, 1)
            [old] = members(node)
            templates = node.root / "templates"
            meta = json.loads((templates / f"base-{DIGEST[:16]}/template.json").read_text())
            digest = "2" * 64
            built = templates / ".new"
            (built / "rootfs/bin").mkdir(parents=True)
            newer = meta | {"digest": digest, "built_at": "2026-02-01T00:00:00Z"}
            (built / "template.json").write_text(json.dumps(newer))
            built.rename(templates / f"base-{digest[:16]}")
            await until(lambda: old not in members(node))
            await ready(node, 1)
            assert (await report(node))["template_digest"] == digest
            assert await take(node, pids=64) is None, "of the old template there is none"
            assert await take(node, pids=64, template_digest=digest) is not None
            await drained(node)

    run(scenario())
