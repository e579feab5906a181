"""Edges of policies and addresses: those kept from before, another sandbox's, the host's newest, odd ranges."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from bellglass import Rule
from bellglass.errors import InvalidRequest
from bellglass.testing.egress import DNS_SERVER
from bellglass.testing.internet import EVIL, GOOD, METADATA, Internet
from bellglass.testing.stack import Stack
from tests.security.conftest import SMALL
from tests.security.inside import Inside, get, tcp

pytestmark = pytest.mark.root
NEW_ADDRESS = "203.0.114.3"
SYNTHETIC = ip_network("198.18.0.0/15")


def address_of(inside: Inside, name: str) -> str:
    found = inside.probe("name", host=name).data
    assert ip_address(found) in SYNTHETIC
    return found


def test_an_address_that_was_kept_is_judged_by_the_policy_of_now(inside: Inside, internet: Internet) -> None:
    inside.allow("evil.test:80", "good.test:80")
    kept = {name: address_of(inside, name) for name in ("evil.test", "good.test")}
    for name, address in kept.items():
        assert inside.http(address, name=name).passed
    inside.allow("good.test:80")
    with internet.silence(EVIL):
        assert inside.http(kept["evil.test"], name="evil.test").cut
        assert inside.http(kept["evil.test"], name="good.test").cut
        assert inside.http(kept["good.test"], name="good.test").passed
        with inside.refused("host_mismatch", host="evil.test"):
            assert inside.http(kept["good.test"], name="evil.test").cut
    inside.allow()
    with internet.silence(EVIL, GOOD, DNS_SERVER):
        for name, address in kept.items():
            assert inside.http(address, name=name).cut


def test_an_address_of_another_sandbox_is_no_address(inside: Inside, internet_stack: tuple[Internet, Stack]) -> None:
    internet, stack = internet_stack
    inside.allow("good.test:80")
    with stack.sandbox(**SMALL, network="open") as box:
        other = Inside(box, *internet_stack)
        theirs = address_of(other, "evil.test")
        with internet.watch(EVIL) as packets:
            assert other.http(theirs, name="evil.test").passed
        assert packets
        other.close()
        with internet.silence(EVIL, DNS_SERVER), inside.refused("unknown_address", address=theirs):
            assert inside.http(theirs, name="evil.test").cut
    with internet.silence(EVIL, DNS_SERVER):
        outcomes = inside.all(*(tcp(f"198.19.{n}.{n}", 80, get("evil.test")) for n in range(1, 60)))
    assert all(outcome.cut for outcome in outcomes)


def test_an_address_that_the_host_has_got_since_is_behind_the_floor(inside: Inside, internet: Internet) -> None:
    """The same address was the internet's a moment before."""
    internet.dns.zone["new.test"] = [NEW_ADDRESS]
    inside.allow("new.test:80", Rule(cidr=f"{NEW_ADDRESS}/32", ports=[80]))
    internet.internet.run("ip", "addr", "add", f"{NEW_ADDRESS}/24", "dev", "w0")
    internet.serve(NEW_ADDRESS, 80)
    for target in ("new.test", NEW_ADDRESS):
        assert "hello" in inside.tcp(target, 80, get("new.test"), until="hello").data
    internet.internet.run("ip", "addr", "del", f"{NEW_ADDRESS}/24", "dev", "w0")
    internet.host.run("ip", "addr", "add", f"{NEW_ADDRESS}/24", "dev", "h0")
    try:
        internet.serve(NEW_ADDRESS, 80, where=internet.host)
        came = len(internet.dialled)
        for target in ("new.test", NEW_ADDRESS):
            with inside.refused("floor", address=NEW_ADDRESS, port=80):
                assert inside.http(target, name="new.test").cut
        assert len(internet.dialled) == came
    finally:
        internet.host.run("ip", "addr", "del", f"{NEW_ADDRESS}/24", "dev", "h0")


@pytest.mark.parametrize(
    ("cidr", "reached", "not_reached"),
    [
        ("128.0.0.0/1", EVIL, "8.8.8.8"),
        (f"{EVIL}/32", EVIL, GOOD),
        ("203.0.114.18/31", EVIL, "203.0.114.17"),
        ("203.0.114.19/32", EVIL, "203.0.114.18"),
    ],
)
def test_ranges_open_what_lies_in_them(
    inside: Inside, internet: Internet, cidr: str, reached: str, not_reached: str
) -> None:
    inside.allow(Rule(cidr=cidr, ports=[80]))
    with internet.silence(METADATA, not_reached):
        assert inside.http(reached).passed
        with inside.refused("address_not_allowed", address=not_reached):
            assert inside.http(not_reached).cut
        with inside.refused("port_not_allowed", address=reached):
            assert inside.http(reached, 8080).cut
        assert inside.http(METADATA).cut


@pytest.mark.parametrize(
    "rule",
    [Rule(cidr="255.255.255.255/32"), Rule(cidr=f"{METADATA}/32"), Rule(cidr="10.0.0.0/8"), Rule(cidr="fe80::/10"),
     Rule(cidr="::ffff:0:0/96"), Rule(host="*.com"), Rule(host="*"), Rule(host="*.co.uk"), Rule(host="10.0.0.1"),
     Rule(host="good.test", ports=[0]), Rule(host="good.test", protocol="udp"), "good.test:http"],
    ids=str,
)  # fmt: skip
def test_what_is_no_policy_changes_nothing(inside: Inside, internet: Internet, rule: Rule | str) -> None:
    inside.allow("good.test:80")
    before = inside.box.network.get()
    with pytest.raises(InvalidRequest):
        inside.allow("evil.test:80", rule)
    assert inside.box.network.get() == before
    with internet.silence(EVIL):
        assert inside.probe("name", host="evil.test").word == "EAI_NONAME"
