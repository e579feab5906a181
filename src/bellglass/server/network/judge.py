"""A wish for a network against what can be: the same in the one form that is stored, or an error that names the rule.

Pure functions. What the presets open is the node's to say, by its own package configuration.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Literal

from bellglass.egress.floor import Floor
from bellglass.egress.policy import Policy, PolicyError
from bellglass.errors import InvalidRequest, NotSupported
from bellglass.model import DEFAULT_PORTS, MAX_PRESETS, MAX_RULE_PORTS, MAX_RULES, Network, NetworkPolicy, NetworkRule
from bellglass.server.cluster.base import NodeInfo
from bellglass.server.http.validation import did_you_mean, refuse
from bellglass.server.network.hosts import normal_host

FIELD = "network"
MODES = ("deny", "open")
Presets = Mapping[str, Mapping[str, Any]]
"""As the node tells them: every name there is, and of those that were asked for `rules` (of a policy's document), or
`problem` and `hint`."""


def judge(wanted: Network, info: NodeInfo, presets: Presets, floor: Floor) -> Network:
    """Raises InvalidRequest, and NotSupported where sandboxes have no network."""
    if isinstance(wanted, str) and wanted not in MODES:
        raise refuse(FIELD, wanted, "is no network", 'deny, open, or {"presets": [...], "allow": [...]}')
    if wanted == "deny":
        return wanted
    if not info.raw.get("capabilities", {}).get("network"):
        raise NotSupported(
            "network: sandboxes of this node have loopback only",
            hint='leave it out, or say "deny"; `bellglass doctor` tells what the node lacks',
            details={"field": FIELD},
        )
    if isinstance(wanted, str):
        return wanted
    if len(wanted.allow) > MAX_RULES:
        raise refuse(f"{FIELD}.allow", len(wanted.allow), "rules are too many", f"at most {MAX_RULES}")
    allow = [_rule(rule, f"{FIELD}.allow.{number}", floor) for number, rule in enumerate(wanted.allow)]
    named = _presets(wanted.presets, presets)
    _check_whole([rule.document() for rule in allow] + [rule for rules in named.values() for rule in rules])
    return NetworkPolicy(presets=list(named), allow=list(allow))


def _presets(names: list[str], known: Presets) -> dict[str, list[dict[str, Any]]]:
    """Their rules, each preset once."""
    if len(names) > MAX_PRESETS:
        raise refuse(f"{FIELD}.presets", len(names), "presets are too many", f"at most {MAX_PRESETS}")
    found = {}
    for number, name in enumerate(names):
        field = f"{FIELD}.presets.{number}"
        if name not in known:
            raise refuse(field, name, "is no preset", did_you_mean(name, known) or f"there are: {', '.join(known)}")
        if problem := known[name].get("problem"):
            raise refuse(field, name, f"is not set up on the node: {problem}", known[name].get("hint"))
        found[name] = list(known[name]["rules"])
    return found


def _rule(wanted: NetworkRule | str, field: str, floor: Floor) -> NetworkRule:
    rule = _written_out(wanted, field) if isinstance(wanted, str) else wanted
    if (rule.host is None) == (rule.cidr is None):
        raise refuse(field, rule.to_json(), "needs exactly one of `host` and `cidr`")
    if rule.protocol != "tcp":
        raise refuse(f"{field}.protocol", rule.protocol, "is not let through", "only tcp is; names need no rule")
    ports = _ports(rule.ports, f"{field}.ports")
    if rule.host is not None:
        return NetworkRule(host=normal_host(rule.host, f"{field}.host"), ports=ports)
    assert rule.cidr is not None
    return NetworkRule(cidr=_cidr(rule.cidr, f"{field}.cidr", floor), ports=ports)


def _written_out(text: str, field: str) -> NetworkRule:
    """`api.example.com:443`, `*.example.com` (port 443), `203.0.114.0/24:5432`."""
    where, colon, port = text.rpartition(":")
    if not colon:
        where, ports = text, list(DEFAULT_PORTS)
    elif port.isascii() and port.isdigit() and len(port) <= 5 and ":" not in where:
        ports = [int(port)]
    else:
        raise refuse(field, text, "is not HOST:PORT", 'such as "api.example.com:443"')
    try:
        ipaddress.ip_network(where, strict=False)
    except ValueError:
        return NetworkRule(host=where, ports=ports)
    return NetworkRule(cidr=where, ports=ports)


def _ports(ports: list[int] | Literal["any"], field: str) -> list[int] | Literal["any"]:
    """In order, each once."""
    if isinstance(ports, str):
        return ports
    if not 1 <= len(set(ports)) <= MAX_RULE_PORTS:
        raise refuse(field, len(set(ports)), "ports are no number of ports", f"from 1 to {MAX_RULE_PORTS}")
    for number, port in enumerate(ports):
        if not 1 <= port <= 65535:
            raise refuse(f"{field}.{number}", port, "is not a port", "from 1 to 65535")
    return sorted(set(ports))


def _cidr(text: str, field: str, floor: Floor) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise refuse(field, text, "is not a range of addresses", 'such as "203.0.114.0/24"') from None
    if network.version != 4:
        raise refuse(field, text, "is of IPv6, which sandboxes have not", "give the host's name, or its IPv4 addresses")
    if str(network.network_address) != text.partition("/")[0]:
        raise refuse(field, text, "has bits behind its prefix", f"did you mean {str(network)!r}?")
    if (held := floor.covers(network)) is not None:
        raise refuse(
            field,
            text,
            f"lies in {held}, which no network opens",
            "the operator can take it out of what is closed: the setting egress.exceptions",
        )
    return str(network)


def _check_whole(rules: list[dict[str, Any]]) -> None:
    """Against the bounds of a policy as proxy and resolver take it."""
    try:
        Policy.parse({"mode": "rules", "rules": rules})
    except PolicyError as error:
        raise InvalidRequest(
            f"network: {error.message}, those of the presets among them",
            hint='fewer rules: one with "*." in front of a name stands for all below it',
            details={"field": FIELD},
        ) from None
