"""What a network closes under `open`: ranges and their edges, IPv4 addresses in each form that IPv6 has for them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.egress.closed import Closed, carried, closed_range, without_mapping
from bellglass.egress.floor import Network
from bellglass.egress.policy import MAX_DENIED, Policy, PolicyError


def closing(*ranges: str) -> Policy:
    return Policy.parse({"mode": "open", "rules": [], "deny": list(ranges)})


def is_closed(policy: Policy, address: str) -> bool:
    verdict = policy.closes(ip_address(address))
    assert verdict is None or (verdict.reason == "address_denied" and not verdict.allowed)
    return verdict is not None


@pytest.mark.parametrize(
    ("cidr", "closed", "open_beside"),
    [
        ("203.0.114.0/24", ["203.0.114.0", "203.0.114.255"], ["203.0.113.255", "203.0.115.0"]),
        ("203.0.114.7", ["203.0.114.7"], ["203.0.114.6", "203.0.114.8"]),
        ("203.0.114.18/31", ["203.0.114.18", "203.0.114.19"], ["203.0.114.17", "203.0.114.20"]),
        ("0.0.0.0/1", ["0.0.0.0", "127.255.255.255"], ["128.0.0.0", "2a00::1"]),
        ("255.255.255.255", ["255.255.255.255"], ["255.255.255.254"]),
        ("2a00:1450::/32", ["2a00:1450::", "2a00:1450:ffff:ffff:ffff:ffff:ffff:ffff"], ["2a00:1451::", "203.0.114.7"]),
        ("2a00::7", ["2a00::7"], ["2a00::6", "2a00::8"]),
        ("::/0", ["::", "2a00::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"], ["8.8.8.8", "0.0.0.0"]),
        ("2000::/3", ["2000::", "3fff::1"], ["1fff::1", "4000::"]),
        ("::ffff:203.0.114.7", ["203.0.114.7", "::ffff:203.0.114.7"], ["203.0.114.8", "::ffff:203.0.114.8"]),
        ("::ffff:203.0.114.0/120", ["203.0.114.0", "203.0.114.255"], ["203.0.113.255", "203.0.115.0"]),
    ],
)  # fmt: skip
def test_ranges_close_what_lies_in_them(cidr: str, closed: list[str], open_beside: list[str]) -> None:
    policy = closing(cidr)
    for address in closed:
        assert is_closed(policy, address), address
        verdict = policy.by_address(ip_address(address), 443)
        assert (verdict.reason, verdict.rule) == ("address_denied", f"deny {closed_range(cidr)}")
        assert Policy("open").by_address(ip_address(address), 443).allowed
    for address in open_beside:
        assert not is_closed(policy, address), address
        assert policy.by_address(ip_address(address), 443).allowed
    assert policy.by_name("a.test", 443).allowed and policy.resolves("a.test"), "names are judged by where they lead"
    assert not policy.by_name("203.0.114.7", 443).allowed and not policy.resolves("203.0.114.7")


CARRYING = {
    "mapped": "::ffff:{a}.{b}.{c}.{d}",
    "compatible": "::{a}.{b}.{c}.{d}",
    "translated": "::ffff:0:{a}.{b}.{c}.{d}",
    "NAT64": "64:ff9b::{a}.{b}.{c}.{d}",
    "local NAT64, /96": "64:ff9b:1::{a}.{b}.{c}.{d}",
    "local NAT64, another /96": "64:ff9b:1:77:7:7:{a}.{b}.{c}.{d}",
    "local NAT64, /64": "64:ff9b:1:77:00{a:02x}:{b:02x}{c:02x}:{d:02x}00::",
    "local NAT64, /56": "64:ff9b:1:77{a:02x}:00{b:02x}:{c:02x}{d:02x}::",
    "local NAT64, /48": "64:ff9b:1:{a:02x}{b:02x}:00{c:02x}:{d:02x}00::",
    "local NAT64, /48, and something behind it": "64:ff9b:1:{a:02x}{b:02x}:00{c:02x}:{d:02x}99:1:2",
    "6to4": "2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1",
    "Teredo's server": "2001:0:{a:02x}{b:02x}:{c:02x}{d:02x}:0:0:f7f7:f7f7",
    "Teredo's client": "2001:0:808:808:0:0:{na:02x}{nb:02x}:{nc:02x}{nd:02x}",
}


@pytest.mark.parametrize("form", CARRYING.values(), ids=CARRYING.keys())
@pytest.mark.parametrize("inner", ["203.0.114.7", "169.254.169.254", "1.2.3.4"])
def test_an_address_inside_of_an_address_is_closed_too(form: str, inner: str) -> None:
    def carrying(text: str) -> str:
        a, b, c, d = IPv4Address(text).packed
        return form.format(a=a, b=b, c=c, d=d, na=a ^ 255, nb=b ^ 255, nc=c ^ 255, nd=d ^ 255)

    neighbour = str(IPv4Address(inner) + 1)
    assert IPv4Address(inner) in carried(IPv6Address(carrying(inner)))
    for cidr in (inner, str(ip_network(f"{inner}/28", strict=False))):
        assert is_closed(closing(cidr), carrying(inner))
    assert not is_closed(closing(inner), carrying(neighbour))
    assert not is_closed(closing("8.8.4.4"), carrying(inner))
    verdict = closing(inner).by_address(ip_address(carrying(inner)), 80)
    assert (verdict.reason, verdict.rule) == ("address_denied", f"deny {inner}/32")


def test_what_a_range_of_ipv6_says_of_ipv4() -> None:
    """Nothing, unless it is mapped addresses alone."""
    for cidr in ("::/0", "::/64", "64:ff9b::/96", "2002::/16", "::fffe:0:0/95"):
        assert not is_closed(closing(cidr), "203.0.114.7")
    assert is_closed(closing("::ffff:0:0/96"), "203.0.114.7")
    assert without_mapping(ip_network("::ffff:10.0.0.0/104")) == ip_network("10.0.0.0/8")
    assert without_mapping(ip_network("::fffe:0:0/95")) == ip_network("::fffe:0:0/95")
    assert without_mapping(ip_network("10.0.0.0/8")) == ip_network("10.0.0.0/8")


def test_ranges_of_the_local_prefix_do_not_close_it_by_its_zeros() -> None:
    assert is_closed(closing("0.0.0.0/8"), "0.1.2.3")
    assert not is_closed(closing("0.0.0.0/8"), "64:ff9b:1::8.8.8.8")


networks = st.one_of(
    st.builds(
        lambda number, length: ip_network((number >> (32 - length) << (32 - length), length)),
        st.integers(0, 2**32 - 1), st.integers(1, 32),
    ),
    st.builds(
        lambda number, length: ip_network((number >> (128 - length) << (128 - length), length)),
        st.integers(2**125, 2**126 - 1), st.integers(1, 128),
    ),
)  # fmt: skip


@given(st.lists(networks, max_size=8), st.data())
def test_a_look_up_finds_what_going_through_all_would(ranges: list[Network], data: st.DataObject) -> None:
    closed = Closed(ranges)
    near = st.sampled_from(ranges).flatmap(
        lambda network: st.sampled_from([network[0], network[-1], *_neighbours(network)])
    )
    address = data.draw(st.one_of(*([near] if ranges else []), st.ip_addresses(v=4), st.ip_addresses(v=6)))
    found = closed.holds(address)
    assert (found is not None) is any(
        one in network for network in ranges for one in (address, *carried(address)) if one.version == network.version
    )
    assert found is None or found in ranges


def _neighbours(network: Network) -> list[IPv4Address | IPv6Address]:
    first, last = int(network[0]), int(network[-1])
    return [type(network[0])(number) for number in (first - 1, last + 1) if 0 <= number < 2**network.max_prefixlen]


@pytest.mark.parametrize(
    "deny",
    [
        "203.0.114.0/24", {}, None, 7, [7], [None], [["203.0.114.0/24"]], ["a.test"], [""], ["203.0.114.7/24"],
        ["203.0.114.0/33"], ["2a00::/129"], ["fe80::1%eth0"], ["fe80::%1/64"], ["203.0.114.0/24 "], ["1.2.3"],
        ["203.0.114.00"], ["0x7f000001"], [str(IPv4Address(number)) for number in range(MAX_DENIED + 1)],
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_what_is_nothing_to_deny(deny: object) -> None:
    assert is_closed(closing("203.0.114.0/24"), "203.0.114.7")
    with pytest.raises(PolicyError):
        Policy.parse({"mode": "open", "rules": [], "deny": deny})


@pytest.mark.parametrize("mode", ["deny", "rules"])
def test_only_what_is_open_has_something_to_deny(mode: str) -> None:
    assert Policy.parse({"mode": mode, "deny": []}).mode == mode
    with pytest.raises(PolicyError, match="nothing to deny"):
        Policy.parse({"mode": mode, "rules": [], "deny": ["203.0.114.0/24"]})


def test_documents_come_back_as_they_went() -> None:
    ranges = [str(IPv4Address(number)) + "/32" for number in range(0x0B000000, 0x0B000000 + MAX_DENIED)]
    policy = closing(*ranges)
    assert policy.to_document() == {"mode": "open", "rules": [], "deny": ranges}
    assert Policy.parse(policy.to_document()) == policy and hash(Policy.parse(policy.to_document())) == hash(policy)
    assert policy != closing(*ranges[1:]) and policy != Policy("open")
    longest = [f"2a00:1234:5678:9abc:def0:1234:1234:{0xF000 + number:x}/128" for number in range(MAX_DENIED)]
    assert closing(*longest).to_document()["deny"] == longest, "as many as may be fit into a document"
    assert closing() == Policy("open") and "deny" not in closing().to_document()
