"""The floor: first, last and the neighbours outside of every range, addresses inside addresses, exceptions."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest

from bellglass.egress.floor import OWN, RANGES, Floor, Network, embedded, parse_exceptions

DECIDED = """0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 168.63.129.16/32 ::/128 ::1/128
fe80::/10 fc00::/7 ff00::/8 ::ffff:0:0/96 64:ff9b::/96 2001::/32 2001:db8::/32 2002::/16"""


@pytest.mark.parametrize("network", RANGES + tuple(ip_network(text) for text in DECIDED.split()), ids=str)
def test_first_and_last_are_in_and_the_neighbours_are_judged_by_their_own(network: Network) -> None:
    floor = Floor()
    first, last = network[0], network[-1]
    assert floor.holds(first) and floor.holds(last) and floor.holds(network[network.num_addresses // 2])
    kind = type(first)
    for number in (int(first) - 1, int(last) + 1):
        if 0 <= number < 2**first.max_prefixlen:
            neighbour = kind(number)
            inside = any(neighbour in other for other in RANGES if other.version == network.version)
            assert (floor.holds(neighbour) is not None) is inside


@pytest.mark.parametrize(
    "text",
    ["1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
     "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.15",
     "168.63.129.17", "169.253.255.255", "169.255.0.0", "2606:4700::1111", "2a00:1450::1", "2003::1", "2000::",
     "2001:20::1", "3ffe::1"],
)  # fmt: skip
def test_public_addresses_are_not_in_it(text: str) -> None:
    assert Floor().holds(ip_address(text)) is None


@pytest.mark.parametrize(
    "text",
    ["169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "::ffff:a9fe:a9fe",
     "::ffff:8.8.8.8", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::169.254.169.254", "255.255.255.255", "fe80::1%1",
     "::ffff:0:a9fe:a9fe", "::ffff:0:808:808", "200:1111::1", "1fff::1", "4000::1", "5f00::1", "9000::1", "e000::1",
     "2001:2::1", "2001:10::1"],
)  # fmt: skip
def test_metadata_and_disguises(text: str) -> None:
    assert Floor().holds(ip_address(text))


def test_an_exception_opens_its_addresses_and_no_others() -> None:
    floor = Floor(parse_exceptions(["10.1.0.0/16", "fd00:1::/32"]))
    assert Floor().holds(ip_address("10.1.2.3")) == "10.0.0.0/8"
    assert floor.holds(ip_address("10.1.2.3")) is None
    assert floor.holds(ip_address("10.2.0.0")) == "10.0.0.0/8"
    assert floor.holds(ip_address("fd00:1::7")) is None
    assert floor.holds(ip_address("fd00:2::7")) == "fc00::/7"


@pytest.mark.parametrize(
    ("outer", "bad", "good"),
    [
        ("64:ff9b::/96", "64:ff9b::a9fe:a9fe", "64:ff9b::808:808"),
        ("::ffff:0:0/96", "::ffff:10.0.0.1", "::ffff:8.8.8.8"),
        ("::ffff:0:0:0/96", "::ffff:0:a00:1", "::ffff:0:808:808"),
        ("2002::/16", "2002:a00:1::1", "2002:808:808::1"),
        ("2001::/32", "2001:0:a00:1::f7f7:f7f7", "2001:0:808:808::f7f7:f7f7"),
        ("2001::/32", "2001:0:808:808::f5ff:fffe", "2001:0:808:808::f7f7:f7f7"),
    ],
)
def test_an_exception_for_the_outer_form_leaves_the_inner_address_judged(outer: str, bad: str, good: str) -> None:
    floor = Floor(parse_exceptions([outer]))
    assert Floor().holds(ip_address(good))
    assert floor.holds(ip_address(good)) is None
    assert floor.holds(ip_address(bad))


def test_the_hosts_own_addresses_are_asked_at_each_question() -> None:
    own: set[str] = set()
    floor = Floor(parse_exceptions(["8.8.4.0/24"]), own=lambda address: str(address) in own)
    assert floor.holds(ip_address("8.8.8.8")) is None
    own.update({"8.8.8.8", "8.8.4.4"})
    assert floor.holds(ip_address("8.8.8.8")) == OWN
    assert floor.holds(ip_address("8.8.4.4")) is None
    excepted_outer = Floor(parse_exceptions(["64:ff9b::/96"]), own=lambda address: str(address) in own)
    assert excepted_outer.holds(ip_address("64:ff9b::808:808")) == OWN


def test_embedded_addresses() -> None:
    assert embedded(IPv4Address("8.8.8.8")) == []
    assert embedded(IPv6Address("2a00::1")) == []
    assert embedded(IPv6Address("::ffff:1.2.3.4")) == [IPv4Address("1.2.3.4")]
    assert embedded(IPv6Address("2002:102:304::")) == [IPv4Address("1.2.3.4")]
    assert embedded(IPv6Address("2001:0:102:304:0:0:fefd:fcfb")) == [IPv4Address("1.2.3.4"), IPv4Address("1.2.3.4")]


def test_networks_that_could_never_let_anything_out() -> None:
    floor = Floor(parse_exceptions(["10.1.0.0/16"]))
    assert floor.covers(ip_network("192.168.1.0/24")) == "192.168.0.0/16"
    assert floor.covers(ip_network("10.2.0.0/16")) == "10.0.0.0/8"
    assert floor.covers(ip_network("10.1.2.0/24")) is None
    assert floor.covers(ip_network("10.0.0.0/8")) is None
    assert floor.covers(ip_network("0.0.0.0/0")) is None
    assert floor.covers(ip_network("fd00::/8")) == "fc00::/7"
    with pytest.raises(ValueError, match=r"'10\.1\.2\.3/8'"):
        parse_exceptions(["10.1.2.3/8"])
