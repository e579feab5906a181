"""A node's networks: journalled, handed on in order, what a crash between the two leaves, and claims of a pool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness import Bench, Box, bench
from pool_calls import apply, pool, ready

from bellglass import errors
from bellglass.egress.policy import Policy, PolicyError
from bellglass.model import NetworkPolicy, NetworkRule, SandboxSpec
from bellglass.node.net.presets import Preset

OPEN = {"mode": "open", "rules": []}
DENY = {"mode": "deny", "rules": []}
ALL_BUT = {"mode": "open", "deny": ["203.0.114.7/32"]}
RULES = {"presets": [], "allow": [{"host": "api.example.com", "cidr": None, "ports": [443], "protocol": "tcp"}]}
RULE = NetworkRule(host="api.example.com")
DOCUMENT = {
    "mode": "rules",
    "rules": [{"host": "api.example.com", "ports": [443], "protocol": "tcp", "origin": "allow"}],
}


class Egress:
    """Stands for proxy and resolver, which the fake driver's machines have no use for: it keeps what it is given."""

    def __init__(self) -> None:
        self.policies: dict[str, tuple[int, Any]] = {}
        self.down = False
        self._end = asyncio.Event()

    def ended(self) -> None:
        """What waits finds that its sandbox is no more."""
        self._end.set()

    async def set_policy(self, sandbox_id: str, policy: dict[str, Any], generation: int) -> None:
        if self.down:
            await self._end.wait()
            raise errors.NotFound(f"no network of a sandbox {sandbox_id!r}")
        self.policies[sandbox_id] = (generation, policy)

    async def traffic(self, sandbox_id: str) -> dict[str, Any]:
        return {"allowed": 1}


async def change(box: Box, network: Any, generation: int) -> dict[str, Any]:
    return await box.call("sandbox.set_network", network=network, network_generation=generation)


def journalled(node: Bench, box: Box) -> tuple[Any, int]:
    spec = SandboxSpec.from_json(node.node.sandboxes.row(box.id, 1).spec)
    return spec.to_json()["network"], spec.network_generation


def test_a_change_is_journalled_and_handed_on(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            node.node.sandboxes.egress = egress = Egress()
            box = await node.create()
            assert journalled(node, box) == ("deny", 1)
            answer = await change(box, RULES, 2)
            assert answer == {"network": RULES, "generation": 2, "resolved": DOCUMENT["rules"]}
            assert egress.policies[box.id] == (2, DOCUMENT) and journalled(node, box) == (RULES, 2)
            assert await box.call("sandbox.network") == {**answer, "traffic": {"allowed": 1}}
            [listed] = (await node.link.call("sandbox.list", {}))["sandboxes"]
            assert listed["network_generation"] == 2

            # A late one is passed over, and is told what is in force.
            assert (await change(box, "open", 1))["network"] == RULES
            assert egress.policies[box.id] == (2, DOCUMENT) and journalled(node, box) == (RULES, 2)

            await change(box, "deny", 5)
            await change(box, ALL_BUT, 6)
            assert egress.policies[box.id] == (6, {**OPEN, "deny": ALL_BUT["deny"]})
            await node.stop()
            await node.start()
            assert journalled(node, box) == (ALL_BUT, 6)

    run(scenario())


def test_one_that_came_to_nothing_behind_the_journal_is_handed_on_by_its_repeat(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellglass.node.net.networks.APPLY_S", 0.2)

    async def scenario() -> None:
        async with bench() as node:
            node.node.sandboxes.egress = egress = Egress()
            box = await node.create()
            await change(box, "open", 2)
            egress.down = True
            with pytest.raises(errors.NodeUnavailable) as refusal:
                await change(box, "deny", 3)
            assert "nothing passes" in str(refusal.value.hint)
            assert journalled(node, box) == ("deny", 3) and egress.policies[box.id] == (2, OPEN)
            egress.down = False
            await change(box, "deny", 3)
            assert egress.policies[box.id] == (3, DENY)

    run(scenario())


def test_an_end_does_not_wait_for_a_change(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            node.node.sandboxes.egress = egress = Egress()
            box = await node.create()
            egress.down = True
            changing = asyncio.create_task(change(box, "open", 2))
            async with asyncio.timeout(10):
                while journalled(node, box) != ("open", 2):
                    await asyncio.sleep(0.01)
                await node.delete(box)
            egress.ended()
            with pytest.raises(errors.SandboxGone):
                await changing

    run(scenario())


def test_refusals(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            with pytest.raises(errors.NotSupported):
                await node.create(network="open")
            assert node.node.sandboxes.rows() == []
            box = await node.create()
            with pytest.raises(errors.NotSupported):
                await change(box, RULES, 2)
            node.node.sandboxes.egress = Egress()
            for wrong in ("wide", 5, ["deny"]):
                with pytest.raises(errors.InvalidRequest):
                    await change(box, wrong, 2)
            assert journalled(node, box) == ("deny", 1)
            assert (await change(box, {**RULES, "mode": "rules"}, 2))["network"] == RULES
            await node.delete(box)
            with pytest.raises(errors.SandboxGone):
                await change(box, "open", 2)

    run(scenario())


def test_a_claim_has_its_network_before_it_is_answered(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bellglass.node.net.networks.APPLY_S", 0.2)

    async def scenario() -> None:
        async with bench() as node:
            node.node.sandboxes.egress = egress = Egress()
            await apply(node, pool(1))
            await ready(node, 1)

            async def claim(network: Any) -> Box:
                spec = node.sandbox_spec(network=network, network_generation=1)
                taken = (await node.link.call("pool.take", {"spec": spec, "has_inputs": False}))["sandbox_id"]
                assert taken, "the network is no part of a machine's shape"
                return await node.create(sandbox_id=taken, network=network, network_generation=1)

            box = await claim(RULES)
            assert egress.policies[box.id] == (1, DOCUMENT) and journalled(node, box) == (RULES, 1)
            await ready(node, 1)
            box = await claim(ALL_BUT)
            assert egress.policies[box.id] == (1, {**OPEN, **ALL_BUT}) and journalled(node, box) == (ALL_BUT, 1)
            await ready(node, 1)
            assert (await claim("deny")).id not in egress.policies, "it has that already"

            # Without it the claim fails, and the machine is nobody's.
            await ready(node, 1)
            egress.down = True
            with pytest.raises(errors.SandboxFailed, match="network"):
                await claim("open")
            egress.down = False
            await ready(node, 1)
            assert len((await node.link.call("sandbox.list", {}))["sandboxes"]) == 3
            await node.link.call("pool.drain", {})

    run(scenario())


def test_a_spec_of_the_first_release_has_deny(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            row = node.node.sandboxes.row(box.id, 1)
            del row.spec["network_generation"]
            await node.node.journal.put(row)
            await node.restart()
            assert journalled(node, box) == ("deny", 1)
            [listed] = (await node.link.call("sandbox.list", {}))["sandboxes"]
            assert listed["network_generation"] == 1

    run(scenario())


LATER = {
    "field": {**RULES, "until": "12:00"},
    "field of a rule": {**RULES, "allow": [{**RULES["allow"][0], "until": "12:00"}]},
    "mode": {**RULES, "mode": "rules_but"},
    "kind": {**RULES, "allow": "all"},
}


@pytest.mark.parametrize("wanted", LATER.values(), ids=LATER)
def test_what_a_later_server_wants_in_its_own_ways_is_deny_until_this_node_knows_them(run: Any, wanted: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            node.node.sandboxes.egress = egress = Egress()
            box = await node.create()
            await change(box, "open", 2)
            with pytest.raises(errors.NotSupported):
                await node.create(network=wanted)
            with pytest.raises(errors.NotSupported):
                await change(box, wanted, 1)
            assert egress.policies[box.id] == (2, OPEN) and journalled(node, box) == ("open", 2), "it came late"
            with pytest.raises(errors.NotSupported, match="earlier release"):
                await change(box, wanted, 3)
            assert egress.policies[box.id] == (2, DENY) and journalled(node, box) == ("deny", 2)
            [listed] = (await node.link.call("sandbox.list", {}))["sandboxes"]
            assert listed["network_generation"] == 2, "the server is to tell it again"
            assert (await change(box, RULES, 3))["network"] == RULES and egress.policies[box.id] == (3, DOCUMENT)

    run(scenario())


def test_a_change_that_waits_for_the_tools_opens_nothing_that_was_closed_meanwhile(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with bench() as node:
            sandboxes = node.node.sandboxes
            sandboxes.egress = egress = Egress()
            box, other = await node.create(), await node.create()
            asked, go_on = asyncio.Event(), asyncio.Event()

            async def slow(name: str) -> Preset:
                asked.set()
                await go_on.wait()
                return Preset()

            monkeypatch.setattr(sandboxes.presets, "_known", slow)
            waiting = [asyncio.ensure_future(change(one, {**RULES, "presets": ["pip"]}, 2)) for one in (box, other)]
            await asked.wait()
            with pytest.raises(errors.NotSupported):
                await change(box, LATER["field"], 3)
            go_on.set()
            await asyncio.gather(*waiting)
            assert egress.policies == {box.id: (2, DENY), other.id: (2, DOCUMENT)}

    run(scenario())


def test_what_a_later_release_journalled_in_its_own_ways_is_deny(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            node.node.sandboxes.egress = Egress()
            box, other = await node.create(), await node.create()
            for one in (box, other):
                await change(one, RULES, 2)
            row = node.node.sandboxes.row(box.id, 1)
            row.spec["network"]["until"] = "12:00"
            await node.node.journal.put(row)
            await node.restart()
            assert journalled(node, box) == ("deny", 2) and journalled(node, other) == (RULES, 2)

    run(scenario())


def test_what_its_mode_has_no_use_for_is_handed_on_and_so_refused(run: Any) -> None:
    """By proxy and resolver. Dropped it would be another network than was asked for."""

    async def scenario() -> None:
        async with bench() as node:
            presets = node.node.sandboxes.presets
            for network in (
                NetworkPolicy(allow=[RULE], deny=ALL_BUT["deny"]),
                NetworkPolicy(mode="open", allow=[RULE]),
            ):
                document = await presets.document(NetworkPolicy.from_json(network.to_json()))
                with pytest.raises(PolicyError, match="has n"):
                    Policy.parse(document)
            for network in (NetworkPolicy(allow=[RULE]), NetworkPolicy(mode="open", deny=ALL_BUT["deny"])):
                Policy.parse(await presets.document(NetworkPolicy.from_json(network.to_json())))

    run(scenario())


def test_running_sandboxes_follow_presets_that_are_renewed(run: Any) -> None:
    async def scenario() -> None:
        async with bench() as node:
            node.node.sandboxes.egress = egress = Egress()
            presets = node.node.sandboxes.presets
            stale = {"host": "mirror.example", "ports": [80], "protocol": "tcp", "origin": "preset:apt"}
            presets._found["apt"] = Preset((stale,))
            follows, other = await node.create(), await node.create()
            await change(follows, {"presets": ["apt"], "allow": RULES["allow"]}, 2)
            await change(other, RULES, 2)
            assert egress.policies[follows.id] == (2, {"mode": "rules", "rules": [*DOCUMENT["rules"], stale]})
            egress.policies.clear()
            answer = await node.link.call("node.renew_presets", {})
            found = answer["presets"]["apt"]["rules"]
            assert answer["sandboxes"] == [follows.id] and found and stale not in found
            assert egress.policies == {follows.id: (2, {"mode": "rules", "rules": [*DOCUMENT["rules"], *found]})}
            egress.policies.clear()
            assert await node.link.call("node.renew_presets", {}) == {**answer, "sandboxes": []}
            assert egress.policies == {}

    run(scenario())
