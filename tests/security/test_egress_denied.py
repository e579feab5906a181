"""Open but for some addresses: whatever way leads to one of them ends, and no packet of it comes there."""

from __future__ import annotations

import threading

import pytest

from bellglass import Network, Rule
from bellglass.errors import InvalidRequest
from bellglass.model import NetworkPolicy
from bellglass.testing.egress import until
from bellglass.testing.internet import (
    DATABASE,
    EVIL,
    EVIL_V6,
    GOOD,
    GOOD_V6,
    HTTP,
    OTHER_HTTP,
    SSH,
    Internet,
)
from bellglass.testing.stack import Stack
from tests.compat.suites import client_environment, client_variables, e2b_variables_of, run_python
from tests.security.inside import Inside, Outcome, get, tcp

pytestmark = pytest.mark.root
POSTGRES = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


def every_way(inside: Inside, address: str, name: str, six: str) -> dict[str, Outcome]:
    outcomes = inside.each(
        {
            "address": tcp(address, HTTP, get(address), until="}"),
            "other port": tcp(address, OTHER_HTTP, get(address), until="}"),
            "speaks first": tcp(address, SSH),
            "no text": tcp(address, DATABASE, POSTGRES),
            "mapped": tcp(f"::ffff:{address}", HTTP, get(address), until="}", family="AF_INET6"),
            "name": tcp(name, HTTP, get(name), until="}"),
            "name, speaks first": tcp(name, SSH),
            "another name in the request": tcp(address, HTTP, get("good.test"), until="}"),
            "name of an IPv6 address": tcp(six, HTTP, get(six), until="}"),
        }
    )
    return {**outcomes, "TLS": inside.https(address, name=name), "TLS by name": inside.https(name)}


@pytest.fixture
def names(internet: Internet) -> None:
    internet.dns.zone |= {"six.good.test": [GOOD_V6], "six.evil.test": [EVIL_V6], "both.test": [EVIL, GOOD]}


@pytest.mark.parametrize("deny", [(EVIL, EVIL_V6), ("203.0.114.18/31", "2dff:b31::18/125"), (f"::ffff:{EVIL}", "::/0")])
def test_no_way_leads_to_what_is_denied(inside: Inside, internet: Internet, names: None, deny: tuple[str, str]) -> None:
    inside.open()
    with internet.watch(EVIL) as packets, internet.watch(EVIL_V6) as packets_v6:
        ways = every_way(inside, EVIL, "evil.test", "six.evil.test")
    assert packets and packets_v6 and [way for way, outcome in ways.items() if not outcome.passed] == []
    inside.open(deny=deny)
    told = {"reason": "address_denied"}
    with internet.silence(EVIL, EVIL_V6):
        with (
            inside.refused(**told, address=EVIL, host=None, port=HTTP),
            inside.refused(**told, address=EVIL, host="evil.test", port=HTTP),
            inside.refused(**told, address=EVIL_V6, host="six.evil.test", port=HTTP),
        ):
            ways = every_way(inside, EVIL, "evil.test", "six.evil.test")
        passing = every_way(inside, GOOD, "good.test", "six.good.test")
    assert {way: outcome for way, outcome in ways.items() if not outcome.cut} == {}
    closed = {"name of an IPv6 address"} if "::/0" in deny else set()
    assert {way for way, outcome in passing.items() if not outcome.passed} == closed


LEFT: dict[str, tuple[list[str], bool]] = {
    "one": ([EVIL], False),
    "first": ([EVIL, GOOD], True),
    "last": ([GOOD, EVIL], True),
    "six": ([EVIL_V6], False),
    "first-six": ([EVIL_V6, GOOD_V6], True),
    "last-six": ([GOOD_V6, EVIL_V6], True),
    "both": ([EVIL, EVIL_V6], False),
    "mapped": ([f"::ffff:{EVIL}"], False),
    "other": ([GOOD], True),
}


def test_a_name_leads_to_what_is_left_of_its_addresses(inside: Inside, internet: Internet) -> None:
    """All of them were elsewhere a moment before."""
    inside.open(deny=[EVIL, EVIL_V6])
    requests = {name: tcp(f"{name}.test", HTTP, get(name), until="}") for name in LEFT}
    internet.dns.zone |= {f"{name}.test": [GOOD] for name in LEFT}
    assert all(outcome.passed for outcome in inside.each(requests).values())
    internet.dns.zone |= {f"{name}.test": addresses for name, (addresses, _) in LEFT.items()}
    with internet.silence(EVIL, EVIL_V6):
        outcomes = inside.each(requests)
    assert {name: (outcome.passed, outcome.cut) for name, outcome in outcomes.items()} == {
        name: (passes, not passes) for name, (_, passes) in LEFT.items()
    }
    inside.open()
    with internet.watch(EVIL) as packets, internet.watch(EVIL_V6) as packets_v6:
        outcomes = inside.each(requests)
    assert [name for name, outcome in outcomes.items() if not outcome.passed] == ["mapped"], "of the floor"
    assert packets and packets_v6


def test_a_change_ends_what_is_open(inside: Inside, internet: Internet, names: None) -> None:
    """Streams to the address, by itself and by names; another one goes on."""
    inside.open()
    came = len(internet.dialled)
    outcomes: list[Outcome] = []
    streams = [tcp(host, SSH, b"x", until="never") for host in (EVIL, "evil.test", "both.test")]
    ended = threading.Thread(target=lambda: outcomes.extend(inside.all(*streams)))
    ended.start()
    until(lambda: [where for where, *_ in internet.dialled[came:]].count(EVIL) == 3)
    with inside.refused("policy_changed", address=EVIL, host="both.test", rule=f"deny {EVIL}/32"):
        inside.open(deny=[EVIL])
        assert inside.box.network.get().traffic.open == 0
        with internet.silence(EVIL):
            ended.join(30)
            assert inside.http(GOOD).passed
    assert [outcome.word for outcome in outcomes] == ["ECONNRESET"] * 3, outcomes


def test_what_is_none_changes_nothing(inside: Inside, internet: Internet) -> None:
    inside.open(deny=[EVIL])
    before = inside.box.network.get()
    assert before.network == NetworkPolicy(mode="open", deny=[f"{EVIL}/32"]) and before.resolved == []
    for network in (
        Network(deny=[EVIL]),
        Network(mode="open", deny=[GOOD], allow=[Rule(host="evil.test")]),
        Network(mode="open", deny=["evil.test"]),
        Network(mode="open", deny=[EVIL, "203.0.114.7/24"]),
        Network(mode="open", deny=["0.0.0.0/0"]),
        Network(mode="wide", deny=[EVIL]),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequest):
            inside.box.network.set(network)
    after = inside.box.network.get()
    assert (after.network, after.generation) == (before.network, before.generation)
    with internet.silence(EVIL):
        assert inside.http(EVIL).cut
    assert inside.box.network.set(after.network).network == before.network, "what it shows can be set"


def test_by_e2bs_client(internet_stack: tuple[Internet, Stack], internet: Internet) -> None:
    came = len(internet.dialled)
    variables = client_variables(e2b_variables_of(internet_stack[1]))
    run_python(
        "network_denied.py",
        client_environment("e2b-2_63"),
        {**variables, "DENIED_ADDRESS": EVIL, "OPEN_ADDRESS": GOOD},
    )
    # By address and by name, before it was denied and after.
    assert [where for where, *_ in internet.dialled[came:]].count(EVIL) == 4
