"""E2B's network objects against ours, both ways.

E2B opens everything and takes away; ours opens nothing but what is named. What means the same in both is translated;
everything else is refused, since a wider or a narrower network than was asked for is no network that was asked for.
"""

from __future__ import annotations

import ipaddress
from typing import Any, NamedTuple

from bellglass.errors import InvalidRequest
from bellglass.model import Network, NetworkPolicy, NetworkRule
from bellglass.server.compat.e2b.control.bodies import Body
from bellglass.server.compat.e2b.errors import not_supported
from bellglass.server.http.validation import shown

ALL = "0.0.0.0/0"
_ALL_WORDS = frozenset({ALL, "all", "::/0"})
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
    denies_all = not has_internet or any(word in _ALL_WORDS for word in deny)
    for word in deny:
        _address(word, "denyOut")
    others = [word for word in deny if word not in _ALL_WORDS]
    if any(word in _ALL_WORDS for word in allow):
        return "open"  # what is allowed wins over what is denied
    rules = [_rule(word) for word in allow]
    if denies_all:
        return NetworkPolicy(allow=list(rules)) if rules else "deny"
    if others:
        raise not_supported(
            f"network.denyOut of single destinations ({others[0]})",
            f'deny all ("{ALL}") and name in allowOut what may be reached',
        )
    if any(rule.host is not None for rule in rules):
        raise InvalidRequest(f'network.allowOut: a name needs denyOut with "{ALL}", else all is allowed anyway')
    return "open"


def _rule(word: str) -> NetworkRule:
    if _is_address(word):
        return NetworkRule(cidr=str(ipaddress.ip_network(word, strict=False)), ports="any")
    return NetworkRule(host=word, ports=HOST_PORTS)


def _address(word: str, field: str) -> None:
    if word not in _ALL_WORDS and not _is_address(word):
        raise InvalidRequest(f"network.{field}: {shown(word)} is neither an address nor a range of addresses")


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False
    return True
