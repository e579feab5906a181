"""Synthetic addresses: one per name, none twice too soon, bounded; and what a sandbox is told about names."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.egress import events
from bellglass.egress.events import Events
from bellglass.egress.policy import DENY, Policy
from bellglass.egress.resolver import names, wire
from bellglass.egress.resolver.names import Names
from bellglass.egress.resolver.zone import MAX_RECENT, Zone


def test_a_name_keeps_its_address_and_the_address_its_name() -> None:
    known = Names(start=0)
    first, second = known.address_of("a.test"), known.address_of("b.test")
    assert (first, second) == (names.FIRST, names.FIRST + 1)
    assert known.address_of("a.test") == first and known.name_of(first) == "a.test"
    assert known.name_of(second + 1) is None


def test_the_ranges_leave_out_the_network_and_the_identity() -> None:
    assert names.FIRST_PINNED.to_bytes(4) == bytes([198, 18, 0, 2]) and names.LAST.to_bytes(4) == bytes(
        [198, 19, 255, 254]
    )
    assert names.FIRST_PINNED + names.PINNED_SIZE == names.FIRST
    known = Names(start=names.SIZE - 1)
    assert known.address_of("a.test") == names.LAST and known.address_of("b.test") == names.FIRST


def test_the_one_that_was_used_the_longest_ago_goes() -> None:
    known = Names(most=3, start=0)
    a, b, c = (known.address_of(name) for name in "abc")
    known.address_of("a")
    assert known.name_of(b) == "b", "dialled: in use"
    d = known.address_of("d")
    assert known.name_of(c) is None and {known.name_of(address) for address in (a, b, d)} == {"a", "b", "d"}
    assert known.address_of("c") not in (a, b, c, d), "never led to another name's old address"


def test_addresses_are_not_used_again_after_names_were_dropped() -> None:
    known = Names(start=0)
    old = known.address_of("a")
    known.follow([], lambda name: False)
    assert known.name_of(old) is None and known.address_of("b") != old


def everything(name: str) -> bool:
    return True


def test_a_name_that_is_spelled_out_has_the_same_address_in_the_next_resolver() -> None:
    before, after = Names(salt="sbone"), Names(salt="sbone")
    for known, spelled in ((before, ["a.test", "b.test"]), (after, ["c.test", "a.test"])):
        known.address_of("asked.before.test")
        known.follow(spelled, everything)
    address = before.address_of("a.test")
    assert names.FIRST_PINNED <= address < names.FIRST
    assert after.name_of(address) == "a.test", "before anybody asked for it"
    assert after.address_of("a.test") == address
    assert after.name_of(before.address_of("b.test")) is None
    other = Names(salt="sbtwo")
    other.follow(["a.test"], everything)
    assert other.address_of("a.test") != address, "each sandbox has addresses of its own"


def test_a_spelled_out_name_keeps_its_addresses_when_rules_change() -> None:
    known = Names(salt="sbone")
    asked = known.address_of("a.test")
    known.follow(["a.test"], everything)
    spelled = known.address_of("a.test")
    assert spelled != asked and known.name_of(asked) == known.name_of(spelled) == "a.test"
    known.follow([], everything)  # a wildcard allows it now
    assert known.address_of("a.test") == spelled and known.name_of(asked) == "a.test"
    known.follow(["b.test"], lambda name: name == "b.test")
    assert known.name_of(asked) is None and known.name_of(spelled) is None and len(known) == 1


def test_two_names_for_one_address_have_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "PINNED_SIZE", 1)
    known = Names(salt="sbone")
    known.follow(["a.test"], everything)
    assert known.address_of("a.test") == names.FIRST_PINNED
    for spelled in (["a.test", "b.test"], ["b.test", "a.test"], ["b.test", "a.test", "b.test"]):
        known.follow(spelled, everything)
        assert known.name_of(names.FIRST_PINNED) is None
        assert known.address_of("a.test") != known.address_of("b.test")
        assert {known.name_of(known.address_of(name)) for name in spelled} == set(spelled)
    known.follow(["b.test"], everything)
    assert known.address_of("b.test") == names.FIRST_PINNED and known.name_of(names.FIRST_PINNED) == "b.test"


@given(st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=8), st.integers(1, 40))
def test_whatever_policies_follow_each_other_both_directions_agree(policies: list[list[int]], size: int) -> None:
    known = Names(most=6, salt="sbone")
    with pytest.MonkeyPatch.context() as few:
        few.setattr(names, "PINNED_SIZE", size)
        follow_and_check(known, policies)


def follow_and_check(known: Names, policies: list[list[int]]) -> None:
    for policy in policies:
        spelled = [f"n{number}" for number in policy]
        known.follow(spelled, lambda name, spelled=spelled: name in spelled or name < "n3")  # type: ignore[misc]
        for name in spelled:
            assert known.name_of(known.address_of(name)) == name
        for address, name in known._names.items():
            assert name in spelled or name < "n3", "nothing that is refused"
            assert address in (known._pinned.get(name), known._addresses.get(name))
        assert len(known) == len(known._pinned) + len(known._addresses) <= 20


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 10))
def test_both_directions_always_agree(asked: list[int], most: int) -> None:
    known = Names(most=most)
    for number in asked:
        address = known.address_of(f"n{number}")
        assert names.FIRST <= address <= names.LAST
        assert known.name_of(address) == f"n{number}" and len(known) <= most


# --- what is told ---------------------------------------------------------------------------------------------------


class Asked:
    """A zone with the events that it told, and a clock that stands still."""

    def __init__(self, policy: Policy = DENY) -> None:
        self.now = 1000.0
        self.events: list[dict[str, Any]] = []
        self.zone = Zone("sbabc", policy, Events(self.events.append, lambda: self.now), lambda: self.now)

    def ask(self, name: str, type: int = wire.A, klass: int = wire.IN) -> tuple[int, bytes]:
        """Code and the address, if any."""
        raw = b"".join(bytes([len(label)]) + label for label in name.encode().split(b".") if label) + b"\0"
        packet = struct.pack("!HHHHHH", 1, 0x100, 1, 0, 0, 0) + raw + struct.pack("!HH", type, klass)
        answer = self.zone.respond(packet)
        assert answer is not None
        return answer[3] & 0xF, answer[len(packet) + 12 :]


RULES = Policy.parse(
    {"mode": "rules", "rules": [{"host": "a.test", "ports": [443]}, {"host": "*.b.test", "ports": [22]}]}
)


def test_allowed_names_have_an_address_and_no_other_record() -> None:
    asked = Asked(RULES)
    code, address = asked.ask("a.test")
    assert code == wire.NOERROR and asked.zone.names.name_of(int.from_bytes(address)) == "a.test"
    assert asked.ask("A.Test") == (code, address)
    assert asked.ask("x.y.b.test")[1] not in (b"", address)
    for type in (wire.AAAA, 65, 64, 16, 15, 33, 6, 43):  # HTTPS SVCB TXT MX SRV SOA DS
        assert asked.ask("a.test", type) == (wire.NOERROR, b"")
    assert asked.events == []


@pytest.mark.parametrize("name", ["evil.test", "b.test", "a.test.evil.test", "xa.test", "test", "4.3.2.1.in-addr.arpa"])
@pytest.mark.parametrize("type", [wire.A, wire.AAAA, 16])
def test_other_names_do_not_exist_and_are_told(name: str, type: int) -> None:
    asked = Asked(RULES)
    assert asked.ask("a.test")[0] == wire.NOERROR
    assert asked.ask(name, type) == (wire.NXDOMAIN, b"")
    [event] = asked.events
    assert (event["sandbox"], event["kind"], event["host"], event["reason"]) == (
        "sbabc",
        "dns",
        name,
        "name_not_allowed",
    )


def test_under_deny_nothing_exists_and_under_open_everything() -> None:
    assert Asked(DENY).ask("a.test") == (wire.NXDOMAIN, b"")
    code, address = Asked(Policy("open")).ask("what.ever.test")
    assert code == wire.NOERROR and address[:1] == b"\xc6"
    assert Asked(Policy("open")).ask("a b.test")[0] == wire.NXDOMAIN, "no host's name"


def test_the_sandbox_itself() -> None:
    asked = Asked(DENY)
    for name in ("localhost", "x.localhost", "sbabc"):
        assert asked.ask(name) == (wire.NOERROR, b"\x7f\0\0\1")
        assert asked.ask(name, wire.AAAA) == (wire.NOERROR, b"\0" * 15 + b"\1")
        assert asked.ask(name, 16) == (wire.NOERROR, b"")
    assert asked.ask("xlocalhost")[0] == wire.NXDOMAIN and asked.ask("sbabcd")[0] == wire.NXDOMAIN


@pytest.mark.parametrize(("type", "klass"), [(255, 1), (252, 1), (251, 1), (1, 3), (1, 255)])
def test_everything_transfers_and_other_classes_are_refused(type: int, klass: int) -> None:
    asked = Asked(RULES)
    assert asked.ask("a.test")[0] == wire.NOERROR
    assert asked.ask("a.test", type, klass) == (wire.REFUSED, b"")
    assert [event["reason"] for event in asked.events] == ["bad_query"]


def test_a_policy_that_tightens_drops_names_and_leaves_the_others() -> None:
    asked = Asked(RULES)
    kept, gone = (asked.ask(name)[1] for name in ("a.test", "x.b.test"))
    asked.zone.follow(Policy.parse({"mode": "rules", "rules": [{"host": "a.test", "ports": [443]}]}))
    assert asked.zone.names.name_of(int.from_bytes(gone)) is None
    assert asked.ask("a.test") == (wire.NOERROR, kept) and asked.ask("x.b.test")[0] == wire.NXDOMAIN


def test_asking_again_at_once_is_the_same_refusal() -> None:
    asked = Asked()
    for _ in range(5):
        asked.ask("evil.test"), asked.ask("evil.test", wire.AAAA)
    assert len(asked.events) == 1 and asked.zone.counts["dns_refused"] == 10
    asked.now += 1.5
    asked.ask("evil.test")
    assert len(asked.events) == 2


def test_a_flood_of_names_is_counted_and_bounded() -> None:
    asked = Asked()
    for number in range(1000):
        asked.ask(f"n{number}.evil.test")
    assert len(asked.events) == events.BURST and len(asked.zone._recent) == MAX_RECENT
    asked.now += 1
    asked.ask("last.test")
    assert asked.events[-1]["suppressed"] == 1000 - events.BURST
    asked.now += 1
    asked.ask("another.test")
    assert "suppressed" not in asked.events[-1]


def test_garbage_is_counted_and_told() -> None:
    asked = Asked()
    assert asked.zone.respond(b"\1\2") is None
    answer = asked.zone.respond(struct.pack("!HHHHHH", 9, 0, 7, 0, 0, 0))
    assert answer is not None and answer[3] & 0xF == wire.FORMERR
    assert asked.zone.counts["dns_bad"] == 2 and [event["host"] for event in asked.events] == [None]
