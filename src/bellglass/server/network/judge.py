"""A wish for a network against what can be: the same in the one form that is stored, or an error that names the rule.

Pure functions. What the presets open is the node's to say, by its own package configuration.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Literal

from bellglass.egress.closed import without_mapping
from bellglass.egress.floor import Floor
from bellglass.egress.policy import Policy, PolicyError
from bellglass.errors import InvalidRequest, NotSupported
from bellglass.model import (
    DEFAULT_PORTS,
    MAX_DENIED,
    MAX_PRESETS,
    MAX_RULE_PORTS,
    MAX_RULES,
    Network,
    NetworkPolicy,
    NetworkRule,
)
from bellglass.server.cluster.base import NodeInfo
from bellglass.server.http.validation import did_you_mean, refuse
from bellglass.server.network.hosts import normal_host

FIELD = "network"
MODES = ("deny", "open")
ONLY_NAMED = "here nothing is open but what presets and allow name"
OPEN_BUT = '{"mode": "open", "deny": [...]} opens all but that'
Presets = Mapping[str, Mapping[str, Any]]
"""As the node tells them: every name there is, and of those that were asked for `rules` (of a policy's document), or
`problem` and `hint`."""


def judge(wanted: Network, info: NodeInfo, presets: Presets, floor: Floor) -> Network:
    """Raises InvalidRequest, and NotSupported where sandboxes have no network."""
    if isinstance(wanted, str) and wanted not in MODES:
        raise refuse(FIELD, wanted, "is no network", f'deny, open, {{"presets": [...], "allow": [...]}}; {OPEN_BUT}')
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
    if wanted.mode == "open":
        return _open(wanted)
    if wanted.deny:
        raise refuse(f"{FIELD}.deny", wanted.deny, f"is for a network that is open; {ONLY_NAMED}", OPEN_BUT)
    if len(wanted.allow) > MAX_RULES:
        raise refuse(f"{FIELD}.allow", len(wanted.allow), "rules are too many", f"at most {MAX_RULES}")
    allow = [_rule(rule, f"{FIELD}.allow.{number}", floor) for number, rule in enumerate(wanted.allow)]
    named = _presets(wanted.presets, presets)
    rules = [rule.document() for rule in allow] + [rule for rules in named.values() for rule in rules]
    _check_whole(rules)
    return NetworkPolicy(presets=list(named), allow=list(allow))


def _open(wanted: NetworkPolicy) -> Network:
    """All but what it denies."""
    for field, given in (("allow", wanted.allow), ("presets", wanted.presets)):
        if given:
            raise refuse(f"{FIELD}.{field}", given, "goes with no mode 'open', which allows all", OPEN_BUT)
    if len(wanted.deny) > MAX_DENIED:
        raise refuse(f"{FIELD}.deny", len(wanted.deny), "ranges are too many", f"at most {MAX_DENIED}")
    deny = [_denied(text, f"{FIELD}.deny.{number}") for number, text in enumerate(wanted.deny)]
    if not deny:
        return "open"
    return NetworkPolicy(mode="open", deny=list(dict.fromkeys(deny)))


def _denied(text: str, field: str) -> str:
    """Ranges that are closed anyway pass: it is no mistake to deny them."""
    network = without_mapping(_range(text, field))
    if network.version == 4 and not network.prefixlen:
        raise refuse(field, text, "would close IPv4 alone, and names may lead to IPv6", '"deny" closes everything')
    return str(network)


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


def _range(text: str, field: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise refuse(field, text, "is not a range of addresses", 'such as "203.0.114.0/24"') from None
    if "%" in text:
        raise refuse(field, text, "has a zone", "leave out what follows the %")
    if network.network_address != ipaddress.ip_address(text.partition("/")[0]):
        raise refuse(field, text, "has bits behind its prefix", f"did you mean {str(network)!r}?")
    return network


def _cidr(text: str, field: str, floor: Floor) -> str:
    network = _range(text, field)
    if network.version != 4:
        raise refuse(field, text, "is of IPv6, which sandboxes have not", "give the host's name, or its IPv4 addresses")
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
