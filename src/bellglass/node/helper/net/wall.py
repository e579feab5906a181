"""The wall around the daemons that speak for sandboxes: what the uids of proxy and resolver may send from this host.

The proxy decides by itself what it dials; this holds where the proxy has been taken over. It may open TCP connections
to addresses outside of the floor and ask the given servers for names. The resolver sends nothing: its answers leave
from sockets inside of the gateways, which no rule here sees.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from bellglass.errors import InvalidRequest
from bellglass.node.helper import run
from bellglass.node.helper.context import Context

MOST_ENTRIES = 256
TIMEOUT_S = 20.0
_TEXT = re.compile(r"[0-9a-f.:]{2,45}(/[0-9]{1,3})?")


class Confined(NamedTuple):
    """Whom it is around. The uid is that of every installation of the host, the gid is this one's."""

    uid: int
    gid: int


def is_networks(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MOST_ENTRIES
        and all(isinstance(entry, str) and _TEXT.fullmatch(entry) for entry in value)
    )


def table_name(installation: str) -> str:
    return f"bellglass_{installation}"


def raise_wall(context: Context, *, exceptions: Sequence[str], dns: Sequence[str]) -> None:
    """Idempotent; takes the place of an earlier one at once. Raises InvalidRequest, InternalError (nft)."""
    proxy = Confined(context.proxy_uid, context.proxy_gid)
    resolver = Confined(context.resolver_uid, context.resolver_gid)
    text = wall_rules(table_name(context.installation), proxy, resolver, exceptions, dns)
    run.run("nft", "--file", "-", timeout_s=TIMEOUT_S, stdin=text)


def wall_rules(table: str, proxy: Confined, resolver: Confined, exceptions: Sequence[str], dns: Sequence[str]) -> str:
    # Not in the helper itself, whose memory every operation's child would share.
    from bellglass.egress.floor import RANGES_V4, RANGES_V6

    open_v4, open_v6 = _by_version(exceptions)
    dns_v4, dns_v6 = _by_version(dns)
    rules = [
        *_each("ip", dns_v4, "meta l4proto { tcp, udp } th dport 53 accept"),
        *_each("ip6", dns_v6, "meta l4proto { tcp, udp } th dport 53 accept"),
        *_each("ip", open_v4, "meta l4proto tcp accept"),
        *_each("ip6", open_v6, "meta l4proto tcp accept"),
        "fib daddr type { local, broadcast, multicast, anycast } reject with icmpx admin-prohibited",
        *_each("ip", [str(network) for network in RANGES_V4], "reject with icmpx admin-prohibited"),
        *_each("ip6", [str(network) for network in RANGES_V6], "reject with icmpx admin-prohibited"),
        "meta l4proto tcp accept",
        "reject with icmpx admin-prohibited",
    ]
    # Declared, deleted and made anew in one transaction: there is no moment without it.
    return "\n".join(
        [
            f"table inet {table}",
            f"delete table inet {table}",
            f"table inet {table} {{",
            "chain proxy {",
            *rules,
            "}",
            "chain output {",
            "type filter hook output priority filter; policy accept;",
            f"meta skuid {proxy.uid} meta skgid {proxy.gid} jump proxy",
            f"meta skuid {resolver.uid} meta skgid {resolver.gid} reject with icmpx admin-prohibited",
            "}",
            "}",
            "",
        ]
    )


def _each(family: str, networks: Sequence[str], verdict: str) -> list[str]:
    return [f"{family} daddr {{ {', '.join(networks)} }} {verdict}"] if networks else []


def _by_version(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of IPv4 and those of IPv6, overlaps merged: a set of nft refuses them."""
    from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network

    try:
        networks = [ip_network(text) for text in texts]
    except ValueError as error:
        raise InvalidRequest(f"{error}", hint="networks are written as 192.0.2.0/24") from None
    v4 = collapse_addresses(network for network in networks if isinstance(network, IPv4Network))
    v6 = collapse_addresses(network for network in networks if isinstance(network, IPv6Network))
    return [str(network) for network in v4], [str(network) for network in v6]
