"""Addresses that no rule opens: private, local, special and metadata ranges, and every address of the host itself.

Only the operator's exceptions take something out of it. An IPv6 address that carries an IPv4 address is judged by that
one as well, even where an exception names the outer range. What is the host's own address is asked of the kernel at
each question, by the route it would take (`proxy/route.py`): a list from start would be wrong by tomorrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

RANGES_V4: tuple[IPv4Network, ...] = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",
    )
)
"""The last one is a cloud's metadata service on a public address. 192.88.99.0/24 was the anycast of 6to4 relays."""

RANGES_V6: tuple[IPv6Network, ...] = tuple(
    IPv6Network(text)
    for text in (
        "::/96",
        "::ffff:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/32",
        "2001:2::/48",
        "2001:10::/28",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
        "::/3",
        "4000::/2",
        "8000::/1",
    )
)
"""::/96 holds ::, ::1 and the old IPv4-compatible form. The last three are all that is not 2000::/3: nothing of the
public internet is there, but overlays that the host has joined (0200::/7) and translators (::ffff:0:0:0/96) may be."""

RANGES: tuple[Network, ...] = RANGES_V4 + RANGES_V6
OWN = "an address of this host"
_LAST_32_BITS = tuple(
    IPv6Network(text) for text in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)
_6TO4 = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")


def embedded(address: Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address leads to: mapped, compatible, NAT64, 6to4, Teredo (server and client)."""
    if isinstance(address, IPv4Address):
        return []
    number = int(address)
    if any(address in network for network in _LAST_32_BITS):
        return [IPv4Address(number & 0xFFFFFFFF)]
    if address in _6TO4:
        return [IPv4Address((number >> 80) & 0xFFFFFFFF)]
    if address in _TEREDO:
        return [IPv4Address((number >> 64) & 0xFFFFFFFF), IPv4Address(~number & 0xFFFFFFFF)]
    return []


def no_address(address: Address) -> bool:
    """Stands for `own` where the host's addresses don't matter: a server that checks a rule."""
    return False


class Floor:
    """`own(address)` says whether it is one of the host's own at this moment."""

    def __init__(self, exceptions: Iterable[Network] = (), own: Callable[[Address], bool] = no_address) -> None:
        self.exceptions = tuple(exceptions)
        self._own = own

    def _excepted(self, address: Address) -> bool:
        return any(address in network for network in self.exceptions)

    def holds(self, address: Address) -> str | None:
        """The range that forbids the address, in words for an event; None when it may be dialled."""
        if getattr(address, "scope_id", None) is not None:
            return "an address with a zone"
        if not self._excepted(address):
            for network in RANGES_V4 if isinstance(address, IPv4Address) else RANGES_V6:
                if address in network:
                    return str(network)
            if self._own(address):
                return OWN
        for inner in embedded(address):
            if (held := self.holds(inner)) is not None:
                return held
        return None

    def covers(self, network: Network) -> str | None:
        """The range that holds all of the network, so that a rule for it could never let anything out; else None."""
        if any(network.overlaps(other) for other in self.exceptions if other.version == network.version):
            return None
        for held in RANGES:
            if held.version == network.version and network.subnet_of(held):  # type: ignore[arg-type]
                return str(held)
        return None


def parse_exceptions(values: Iterable[str]) -> tuple[Network, ...]:
    """Raises ValueError, which names the value."""
    found = []
    for value in values:
        try:
            found.append(ip_network(value.strip()))
        except ValueError as error:
            raise ValueError(f"{value!r} is not a CIDR: {error}") from error
    return tuple(found)
