"""Ranges that a sandbox's own network closes, under `open`: every address that a connection would be dialled to is
looked up here, whether a program dialled it or a name led to it, and so is an IPv4 address that an IPv6 one carries.

IPv4-mapped ranges mean IPv4. A wider range of IPv6 that holds them, such as ::/0, says nothing of IPv4.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from bellglass.egress.floor import Address, Network, embedded

_MAPPED = IPv6Network("::ffff:0:0/96")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_NO_DESTINATION = IPv4Network("0.0.0.0/8")


def closed_range(text: str) -> Network:
    """An address or a CIDR without bits behind its prefix. Raises ValueError."""
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    return without_mapping(ip_network(text))


def without_mapping(network: Network) -> Network:
    """The IPv4 range that an IPv4-mapped one means; any other as it is."""
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        number = int(network.network_address) & 0xFFFFFFFF
        return IPv4Network((number, network.prefixlen - _MAPPED.prefixlen))
    return network


def carried(address: Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address may lead to: `embedded`, and where a translator's prefix may have any of
    several lengths (RFC 8215) the places where each of them has it (RFC 6052)."""
    found = embedded(address)
    if isinstance(address, IPv6Address) and address in _LOCAL_NAT64:
        number = int(address)
        # Behind prefixes of 48, 56 and 64 bits; bits 64 to 71 are no part of it.
        places = (
            (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF,
            (number >> 64 & 0xFF) << 24 | number >> 32 & 0xFFFFFF,
            number >> 24 & 0xFFFFFFFF,
        )
        # What another length leaves there is mostly zeros.
        found += [one for place in places if (one := IPv4Address(place)) not in _NO_DESTINATION]
    return found


class Closed:
    """Unchangeable once made. A look-up takes as long as there are lengths of prefixes, however many ranges."""

    __slots__ = ("_by_version", "ranges")

    def __init__(self, ranges: Iterable[Network] = ()) -> None:
        self.ranges = tuple(ranges)
        tables: dict[int, dict[int, dict[int, Network]]] = {4: {}, 6: {}}
        for network in self.ranges:
            shift = network.max_prefixlen - network.prefixlen
            tables[network.version].setdefault(shift, {})[int(network.network_address) >> shift] = network
        self._by_version = {version: tuple(table.items()) for version, table in tables.items()}

    def holds(self, address: Address) -> Network | None:
        """The range that the address is in, or one that it may lead to."""
        if not self.ranges:
            return None
        for one in (address, *carried(address)):
            number = int(one)
            for shift, table in self._by_version[one.version]:
                if (network := table.get(number >> shift)) is not None:
                    return network
        return None
