"""The benchmarks of the proxy as tests: generous bounds of time, exact ones of what may pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bellglass.testing.egress import Rig
from benchmarks.cases import egress_policy, egress_relay
from benchmarks.egress import ECHO, program


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as running:
        running.dns.zone[egress_relay.NAME] = [egress_relay.ADDRESS]
        running.attach("sb1", *egress_policy.LOOSE)
        yield running


def test_no_packet_leaves_after_a_tightening_has_been_answered(rig: Rig) -> None:
    with program(rig.world, ECHO, egress_policy.ALLOWED, egress_policy.FORBIDDEN):
        flips = egress_policy.flip(rig, 200)
        cuts = egress_policy.cut(rig, 20)
    assert flips.loose > 0, "the sniffer heard nothing while the address was allowed"
    assert flips.leaked == 0
    assert flips.broken == 0 and flips.allowed > 100
    assert sorted(cuts)[len(cuts) // 2] < 100


def test_connecting_and_relaying_cost_little(rig: Rig) -> None:
    rig.policy("sb1", {"host": egress_relay.NAME, "ports": [22, 443]})
    for row in (*egress_relay.connecting(rig, 50), *egress_relay.relaying(rig, 1, 1.0)):
        assert not row.missed(slack=5), f"{row.what}: {row.summary}"
