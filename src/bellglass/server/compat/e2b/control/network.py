"""E2B's network objects against ours, both ways.

E2B opens everything and takes away, and what it allows wins over what it takes. Here a network either opens nothing but
what is named, or all but what it denies. What means the same in both is translated; everything else is refused, since
a wider or a narrower network than was asked for is no network that was asked for.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left
from typing import Any, NamedTuple

from bellglass.egress.closed import without_mapping
from bellglass.errors import InvalidRequest
from bellglass.model import MAX_DENIED, Network, NetworkPolicy, NetworkRule
from bellglass.server.compat.e2b.control.bodies import Body
from bellglass.server.compat.e2b.errors import not_supported
from bellglass.server.http.validation import shown

ALL = "0.0.0.0/0"
_ALL_WORDS = frozenset({ALL, "all"})
_Range = ipaddress.IPv4Network | ipaddress.IPv6Network
HOST_PORTS = [80, 443]
"""Where E2B looks at names: HTTP's and TLS's own ports."""


class Wanted(NamedTuple):
    network: Network
    public_ports: bool
    """Whether the URLs of its ports need no token."""
    host: str | None
    """What programs at them get as Host."""
    tls_ports: list[int]
    """Whose programs speak TLS alone."""


def wanted(body: Body) -> Wanted:
    """Of a create: takes `network` and `allow_internet_access`. Raises InvalidRequest, NotSupported."""
    has_internet = body.take("allow_internet_access", bool, True)
    inner = body.inner("network")
    if inner is None:
        return Wanted("open" if has_internet else "deny", True, None, [])
    is_public = inner.take("allowPublicTraffic", bool, True)
    host = inner.take("maskRequestHost", str) or None
    tls_ports = inner.take("httpsPorts", list) or []
    if any(type(port) is not int for port in tls_ports):
        raise InvalidRequest(f"network.httpsPorts: {shown(tls_ports)} are not ports")
    network = _egress(inner, has_internet)
    inner.done()
    return Wanted(network, is_public, host, tls_ports)


def update(body: Body) -> Network:
    """Of a change, which replaces all: what is left out is open again."""
    network = _egress(body, body.take("allow_internet_access", bool, True))
    body.done()
    return network


def shape(network: Network) -> dict[str, Any]:
    """As E2B shows it; `deny` also as `allowInternetAccess`."""
    if not isinstance(network, NetworkPolicy):
        return {"denyOut": [ALL]} if network == "deny" else {}
    if network.mode == "open":
        return {"denyOut": list(network.deny)}
    allowed = [rule.host or rule.cidr for rule in network.rules()]
    return {"allowOut": allowed, "denyOut": [ALL]}


def _egress(body: Body, has_internet: bool) -> Network:
    allow, deny = body.words("allowOut") or [], body.words("denyOut") or []
    if body.take("dnsServers", list):
        raise not_supported("network.dnsServers", "names are resolved for the sandbox, by the operator's servers")
    if body.take("rules", dict):
        raise not_supported("network.rules (headers put into requests)")
    if body.take("egressProxy", dict):
        raise not_supported("network.egressProxy")
    for field, words in (("allowOut", allow), ("denyOut", deny)):
        if len(words) > MAX_DENIED:
            raise InvalidRequest(f"network.{field}: {len(words)} destinations are more than {MAX_DENIED}")
    denied = [_denied(word) for word in deny if word not in _ALL_WORDS]
    denies_all = not has_internet or len(denied) < len(deny) or any(not network.prefixlen for network in denied)
    if any(word in _ALL_WORDS for word in allow):
        return "open"  # what is allowed wins over what is denied
    if denies_all:
        return NetworkPolicy(allow=[_rule(word) for word in allow]) if allow else "deny"
    allowed = [_range(word) for word in allow]
    if None in allowed:
        raise InvalidRequest(f'network.allowOut: a name needs denyOut with "{ALL}", else all is allowed anyway')
    return _open_but(denied, [network for network in allowed if network is not None])


def _open_but(denied: list[_Range], allowed: list[_Range]) -> Network:
    """What of the denied ones is not allowed, in their order."""
    cuts = {version: _Cuts([network for network in allowed if network.version == version]) for version in (4, 6)}
    left: list[_Range] = []
    for network in denied:
        left += cuts[network.version].left_of(network, most=MAX_DENIED + 1)
        if len(left) > MAX_DENIED:
            raise not_supported(
                f"network.denyOut of more than {MAX_DENIED} ranges, once what allowOut has is taken out of them,",
                "fewer single addresses in allowOut, or wider ranges",
            )
    return NetworkPolicy(mode="open", deny=[str(network) for network in left]) if left else "open"


class _Cuts:
    """Ranges of one version to take out of others."""

    def __init__(self, networks: list[Any]) -> None:
        # In order, and apart from one another.
        self._bounds = [(int(one[0]), int(one[-1])) for one in ipaddress.collapse_addresses(networks)]
        self._ends = [last for _, last in self._bounds]

    def left_of(self, network: _Range, *, most: int) -> list[_Range]:
        """Ends with `most` and some."""
        kind: Any = type(network[0])
        at, end = int(network[0]), int(network[-1])
        index = bisect_left(self._ends, at)
        if index == len(self._bounds) or self._bounds[index][0] > end:
            return [network]
        left: list[_Range] = []
        for first, last in self._bounds[index:]:
            if first > end or len(left) >= most:
                break
            if at < first:
                left += ipaddress.summarize_address_range(kind(at), kind(first - 1))
            at = last + 1
        return left + list(ipaddress.summarize_address_range(kind(at), kind(end)) if at <= end else ())


def _rule(word: str) -> NetworkRule:
    network = _range(word)
    if network is None:
        return NetworkRule(host=word, ports=HOST_PORTS)
    return NetworkRule(cidr=str(network), ports="any")


def _denied(word: str) -> _Range:
    network = _range(word)
    if network is None:
        raise InvalidRequest(f"network.denyOut: {shown(word)} is neither an address nor a range of addresses")
    return network


def _range(word: str) -> _Range | None:
    """None for what is no address: a name. Bits behind the prefix count for nothing, as with E2B."""
    try:
        return None if "%" in word else without_mapping(ipaddress.ip_network(word, strict=False))
    except ValueError:
        return None
