"""What the node tells proxy and resolver, over real control sockets: through deaths of either, in the right order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from egress_rig import ALL_BUT, DENY, OPEN, RULES, Bench, FirstRelease, Handle, until

from bellglass.errors import NodeUnavailable, NotFound, SandboxFailed
from bellglass.node.drivers.base import LISTENERS
from bellglass.node.net import egress as egress_module
from bellglass.node.net import peer as peer_module


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.kill(*list(made.daemons))


def test_a_sandbox_from_attach_to_detach(bench: Bench) -> None:
    async def scenario() -> None:
        bench.begin()
        node, handle = bench.egress(), Handle()
        await node.start()
        assert bench.driver.walls == [(["10.0.0.0/8"], ["192.0.2.53", "fe80::1"])]
        await node.attach("sb1", handle, RULES, 1)
        assert bench.all_hold(sb1=1)
        assert sorted(handle.asked) == ["dns_tcp", "dns_udp", "proxy"]
        bench.told.clear()
        await node.set_policy("sb1", OPEN, 2)
        assert bench.told == [("proxy", "open", "sb1"), ("resolver", "open", "sb1")], "first who lets through"
        await node.set_policy("sb1", DENY, 1)
        assert bench.all_hold(sb1=2) and len(bench.told) == 2, "an older one is passed over"
        await node.detach("sb1")
        await node.detach("sb1")
        assert bench.all_hold()
        with pytest.raises(NotFound):
            await node.set_policy("sb1", OPEN, 3)
        await node.close()

    asyncio.run(scenario())


def test_a_daemon_that_was_started_anew_gets_everything(bench: Bench) -> None:
    async def scenario() -> None:
        bench.begin()
        node, handle = bench.egress(), Handle()
        await node.start()
        for sandbox in ("sb1", "sb2"):
            await node.attach(sandbox, handle, DENY, 1)
        await until(lambda: bench.all_hold(sb1=1, sb2=1))
        bench.kill("resolver")
        change = asyncio.ensure_future(node.set_policy("sb1", OPEN, 2))
        await until(lambda: bench.daemons["proxy"].generations == {"sb1": 2, "sb2": 1})
        await node.detach("sb2")
        assert not change.done(), "one of them can't have it"
        handle.asked.clear()
        bench.begin("resolver")
        await asyncio.wait_for(change, 20)
        await until(lambda: bench.all_hold(sb1=2))
        assert handle.asked == ["dns_udp", "dns_tcp"], "the proxy still has its own"
        bench.kill("proxy", "resolver")
        bench.begin()
        await until(lambda: bench.all_hold(sb1=2))
        await node.close()

    asyncio.run(scenario())


def test_a_node_that_was_started_anew_opens_nothing_twice(bench: Bench) -> None:
    async def scenario() -> None:
        bench.begin()
        before, handle = bench.egress(), Handle()
        await before.start()
        for sandbox in ("sb1", "sb2"):
            await before.attach(sandbox, handle, DENY, 1)
        await until(lambda: bench.all_hold(sb1=1, sb2=1))
        await before.close()
        bench.told.clear()
        node, again = bench.egress(), Handle()
        await node.attach("sb1", again, OPEN, 2)  # what its journal has; sb2 ended while it was away
        assert bench.told == []
        await node.start()
        await until(lambda: bench.all_hold(sb1=2))
        assert again.asked == []
        assert {("proxy", "detached", "sb2"), ("resolver", "detached", "sb2")} <= set(bench.told)
        assert not any(what == "detached" and sandbox == "sb1" for _, what, sandbox in bench.told)
        await node.close()

    asyncio.run(scenario())


def test_an_older_journal_counts_more_than_what_a_daemon_holds(bench: Bench) -> None:
    async def scenario() -> None:
        bench.begin()
        before = bench.egress()
        await before.start()
        await before.attach("sb1", Handle(), OPEN, 9)
        await before.close()
        node = bench.egress()
        await node.attach("sb1", Handle(), DENY, 3)
        await node.start()
        await until(lambda: bench.all_hold(sb1=3))
        await node.close()

    asyncio.run(scenario())


def test_without_a_wall_nothing_is_attached(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "LOOK_S", 0.05)
    monkeypatch.setattr(egress_module, "ATTACH_S", 0.2)

    async def scenario() -> None:
        bench.begin()
        bench.driver.failures = 10
        node = bench.egress()
        await node.start()
        await node.attach("sb1", Handle(), OPEN, 1)
        assert bench.told == [] and bench.driver.failures > 0
        await until(lambda: bench.all_hold(sb1=1))
        assert bench.driver.walls
        await node.close()

    asyncio.run(scenario())


def test_the_wall_is_looked_after(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reloads the host's own rules takes it away; other DNS servers of the host are let through."""
    monkeypatch.setattr(egress_module, "LOOK_S", 0.01)

    async def scenario() -> None:
        node = bench.egress()
        await node.start()
        await asyncio.sleep(0.05)
        assert len(bench.driver.walls) == 1, "nothing has changed"
        (bench.data.egress_dir / "etc/resolv.conf").write_bytes(b"# f\xfcr alle\nnameserver 192.0.2.54\n")
        await until(lambda: bench.driver.walls[-1] == (["10.0.0.0/8"], ["192.0.2.54"]))
        monkeypatch.setattr(egress_module, "WALL_AGAIN_S", 0.01)
        await until(lambda: len(bench.driver.walls) > 3)
        await node.close()

    asyncio.run(scenario())


def test_what_can_not_be_attached_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "RETRY_S", 0.02)

    async def scenario() -> None:
        node, handle, other = bench.egress(), Handle(), Handle()
        handle.failures = 3
        await node.attach("sb1", handle, DENY, 1)
        await node.attach("sb2", other, DENY, 1)
        bench.begin()
        await node.start()
        await until(lambda: bench.all_hold(sb1=1, sb2=1))
        await node.close()

    asyncio.run(scenario())


def test_a_sandbox_that_comes_while_a_daemon_is_told_of_the_others_is_attached_as_well(bench: Bench) -> None:
    class Slow(Handle):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go_on = asyncio.Event(), asyncio.Event()

        async def listeners(self, names: Collection[str] = LISTENERS) -> dict[str, socket.socket]:
            self.begun.set()
            await self.go_on.wait()
            return await super().listeners(names)

    async def scenario() -> None:
        node, slow = bench.egress(), Slow()
        await node.attach("sb1", slow, DENY, 1)
        bench.begin()
        await node.start()
        await slow.begun.wait()
        await asyncio.wait_for(node.attach("sb2", Handle(), DENY, 1), 20)  # it doesn't wait
        slow.go_on.set()
        await until(lambda: bench.all_hold(sb1=1, sb2=1))
        await node.close()

    asyncio.run(scenario())


def test_an_attach_that_took_too_long_is_done_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "ATTACH_S", 0.1)
    monkeypatch.setattr(peer_module, "RETRY_S", 0.02)

    class Slow(Handle):
        is_slow = True

        async def listeners(self, names: Collection[str] = LISTENERS) -> dict[str, socket.socket]:
            if self.is_slow:
                await asyncio.Event().wait()
            return await super().listeners(names)

    async def scenario() -> None:
        bench.begin()
        node, slow = bench.egress(), Slow()
        await node.start()
        await node.attach("sb1", Handle(), RULES, 1)  # both are connected
        await node.attach("sb2", slow, RULES, 1)
        assert bench.all_hold(sb1=1)
        slow.is_slow = False
        await until(lambda: bench.all_hold(sb1=1, sb2=1))
        await node.close()

    asyncio.run(scenario())


def test_a_fault_in_one_sandbox_keeps_no_policy_from_the_others(bench: Bench) -> None:
    """The connection goes on after whatever error, a bug of ours included."""

    class Broken(Handle):
        async def listeners(self, names: Collection[str] = LISTENERS) -> dict[str, socket.socket]:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("nobody expected it")
            return await super().listeners(names)

    async def scenario() -> None:
        node, broken = bench.egress(), Broken()
        broken.failures = 2
        await node.attach("sb1", broken, DENY, 1)
        await node.attach("sb2", Handle(), RULES, 1)
        bench.begin()
        await node.start()
        await until(lambda: bench.all_hold(sb1=1, sb2=1))
        await asyncio.wait_for(node.set_policy("sb2", DENY, 2), 20)
        await node.close()

    asyncio.run(scenario())


def test_a_machine_of_an_earlier_release_has_no_network(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "RETRY_S", 0.01)

    class Old(Handle):
        async def listeners(self, names: Collection[str] = LISTENERS) -> dict[str, socket.socket]:
            self.asked += names
            raise NotFound("sb1 has no network")

    async def scenario() -> None:
        node, old = bench.egress(), Old()
        await node.attach("sb1", old, DENY, 0)
        await node.attach("sb2", Handle(), DENY, 1)
        bench.begin()
        await node.start()
        await until(lambda: bench.all_hold(sb2=1))
        await asyncio.sleep(0.1)
        assert sorted(old.asked) == ["dns_tcp", "dns_udp", "proxy"], "asked once"
        await node.close()

    asyncio.run(scenario())


def test_a_sandbox_does_not_wait_for_ever_for_its_network(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "ATTACH_S", 0.2)

    async def scenario() -> None:
        node = bench.egress()
        await node.start()
        began = asyncio.get_running_loop().time()
        first, second = Handle(), Handle()
        await node.attach("sb1", first, DENY, 1)
        assert asyncio.get_running_loop().time() - began < 0.15, "what may reach nothing needs nobody"
        await node.attach("sb2", second, OPEN, 1)
        assert (first.unused_closed, second.unused_closed) == (1, 1), "nobody is there to answer: it is refused"
        bench.begin()
        await until(lambda: bench.all_hold(sb1=1, sb2=1))
        await node.close()

    asyncio.run(scenario())


def test_events_are_handed_on(bench: Bench) -> None:
    async def scenario() -> None:
        bench.begin()
        node, heard = bench.egress(), []  # type: ignore[var-annotated]
        node.on_event(heard.append)
        await node.start()
        await node.attach("sb1", Handle(), OPEN, 1)
        await until(lambda: {event["by"] for event in heard} == {"proxy", "resolver"})
        assert {event["sandbox"] for event in heard} == {"sb1"}
        await node.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("old", ["proxy", "resolver"])
def test_one_of_an_earlier_release_that_knows_no_such_policy_lets_nothing_pass(
    bench: Bench, old: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds an open network, and would go on with it."""

    async def scenario() -> None:
        bench.begin(old, release=FirstRelease)
        bench.begin("resolver" if old == "proxy" else "proxy")
        node, heard = bench.egress(), []  # type: ignore[var-annotated]
        node.on_event(lambda event: heard.append(event) if "reason" in event else None)
        await node.start()
        for sandbox in ("sb1", "sb2"):
            await node.attach(sandbox, Handle(), OPEN, 1)
        assert bench.all_hold(sb1=1, sb2=1)
        with pytest.raises(NodeUnavailable, match=f"the {old} does not take the policy"):
            await asyncio.wait_for(node.set_policy("sb1", ALL_BUT, 2), 20)
        assert bench.daemons[old].generations == {"sb2": 1} and list(bench.daemons[old].sockets) == ["sb2"]
        told = {
            "sandbox": "sb1",
            "reason": "policy_refused",
            "rule": f"{old}: a policy has mode and rules, and nothing else",
        }
        assert heard == [told]
        assert f"sandbox sb1: the {old} does not take its policy, and lets nothing pass" in caplog.text
        with pytest.raises(SandboxFailed):
            await node.attach("sb3", Handle(), ALL_BUT, 1)
        await node.detach("sb3")
        await node.set_policy("sb1", RULES, 3)  # which it knows
        assert bench.all_hold(sb1=3, sb2=1)
        await node.close()

    asyncio.run(scenario())


def test_a_node_that_finds_one_of_an_earlier_release_closes_what_that_does_not_know(bench: Bench) -> None:
    async def scenario() -> None:
        bench.begin(release=FirstRelease)
        before = bench.egress()
        await before.start()
        for sandbox in ("sb1", "sb2"):
            await before.attach(sandbox, Handle(), OPEN, 1)
        await before.close()
        node = bench.egress()
        await node.attach("sb1", Handle(), ALL_BUT, 2)
        await node.attach("sb2", Handle(), RULES, 2)
        await node.start()
        await until(lambda: bench.all_hold(sb2=2))
        bench.kill("proxy", "resolver")
        bench.begin()
        await until(lambda: bench.all_hold(sb1=2, sb2=2))
        await node.close()

    asyncio.run(scenario())
