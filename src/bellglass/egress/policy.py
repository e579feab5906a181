"""What a sandbox may reach: the policy document, read strictly, and its answer for a name or an address.

A document is `{"mode": "deny" | "rules" | "open", "rules": [...], "deny": [...]}`; a rule is `{"host": ...}` or
`{"cidr": ...}` with `ports` (a list, or `"any"`), `protocol` and `origin`. `api.example.com` matches that name alone,
`*.example.com` any depth below it and not the name itself. Rules by host never match an address that was dialled as
such, rules by CIDR never match a name. `deny` are CIDRs that `open` leaves closed, for addresses that are dialled as
such and for those that a name leads to. Names are lower-case ASCII (punycode) without a trailing dot. A document that
is anything else is refused as a whole.
"""

from __future__ import annotations

import json
import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, NamedTuple

from bellglass.egress.closed import Closed, closed_range
from bellglass.egress.floor import Address

MAX_RULES = 256
MAX_DENIED = 256
MAX_PORTS = 64
MAX_DOCUMENT_BYTES = 48 * 1024
MAX_NAME_BYTES = 253
MODES = ("deny", "rules", "open")
ANY = "any"
"""In place of a list of ports."""

NAME_NOT_ALLOWED = "name_not_allowed"
ADDRESS_NOT_ALLOWED = "address_not_allowed"
PORT_NOT_ALLOWED = "port_not_allowed"
ADDRESS_DENIED = "address_denied"
NOTHING_CLOSED = Closed()

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Resolvers and libraries read such a last label as part of an IPv4 address: 1.2.3.4, 0x7f.1, 2130706433.
_NUMERIC = re.compile(r"\d+|0x[0-9a-f]*")
_ORIGIN = re.compile(r"allow|preset:[a-z0-9_-]{1,32}")


class PolicyError(ValueError):
    """The document is no policy. `rule` is the index of the rule that is wrong, None for the document itself."""

    def __init__(self, message: str, rule: int | None = None) -> None:
        super().__init__(message if rule is None else f"rules[{rule}]: {message}")
        self.message = message
        self.rule = rule


def is_name(text: str) -> bool:
    """Whether it is a host name in the form that policies hold: lower case, no trailing dot, not an address."""
    if not 0 < len(text) <= MAX_NAME_BYTES:
        return False
    labels = text.split(".")
    return all(_LABEL.fullmatch(label) for label in labels) and not _NUMERIC.fullmatch(labels[-1])


def is_pattern(text: str) -> bool:
    """Whether it can be a rule's host: a name, or `*.` before a name of at least two labels."""
    if text.startswith("*."):
        return is_name(text[2:]) and "." in text[2:] and len(text) <= MAX_NAME_BYTES
    return is_name(text)


class Rule(NamedTuple):
    """One way out. Exactly one of `host` and `network` is set."""

    host: str | None
    network: IPv4Network | IPv6Network | None
    ports: frozenset[int] | None
    """None: every one."""
    origin: str = "allow"

    @classmethod
    def parse(cls, document: Any, index: int | None = None) -> Rule:
        """Raises PolicyError, which names the index."""
        if not isinstance(document, dict):
            raise PolicyError(f"{document!r} is not a rule", index)
        unknown = set(document) - {"host", "cidr", "ports", "protocol", "origin"}
        if unknown:
            raise PolicyError(f"unknown field {sorted(unknown)[0]!r}", index)
        if ("host" in document) == ("cidr" in document):
            raise PolicyError("a rule has either host or cidr", index)
        host = network = None
        if "host" in document:
            host = document["host"]
            if not isinstance(host, str) or not is_pattern(host):
                raise PolicyError(f"host {host!r} is neither a host name nor *. before one", index)
        else:
            network = _network(document["cidr"], index)
        if document.get("protocol", "tcp") != "tcp":
            raise PolicyError(f"protocol {document['protocol']!r} is not tcp", index)
        origin = document.get("origin", "allow")
        if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
            raise PolicyError(f"origin {origin!r} is neither allow nor preset:<name>", index)
        return cls(host, network, _ports(document.get("ports"), index), origin)

    def to_document(self) -> dict[str, Any]:
        where = {"host": self.host} if self.host is not None else {"cidr": str(self.network)}
        ports = ANY if self.ports is None else sorted(self.ports)
        return {**where, "ports": ports, "protocol": "tcp", "origin": self.origin}

    def opens(self, port: int) -> bool:
        return self.ports is None or port in self.ports

    def __str__(self) -> str:
        where = self.host if self.host is not None else str(self.network)
        return f"{where}:{ANY if self.ports is None else ','.join(str(port) for port in sorted(self.ports))}"


def _network(cidr: Any, index: int | None) -> IPv4Network | IPv6Network:
    if not isinstance(cidr, str):
        raise PolicyError(f"cidr {cidr!r} is not a string", index)
    try:
        network = ip_network(cidr)
    except ValueError as error:
        raise PolicyError(f"cidr {cidr!r}: {error}", index) from error
    if "%" in cidr:
        raise PolicyError(f"cidr {cidr!r} has a zone", index)
    return network


def _ports(ports: Any, index: int | None) -> frozenset[int] | None:
    if ports == ANY:
        return None
    if not isinstance(ports, list) or not 0 < len(ports) <= MAX_PORTS:
        raise PolicyError(f"ports has to be a list of 1 to {MAX_PORTS} ports", index)
    for port in ports:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
            raise PolicyError(f"port {port!r} is not a whole number from 1 to 65535", index)
    return frozenset(ports)


def _closed(deny: Any) -> Closed:
    if not isinstance(deny, list):
        raise PolicyError("deny is not a list")
    if len(deny) > MAX_DENIED:
        raise PolicyError(f"{len(deny)} ranges to deny are more than {MAX_DENIED}")
    ranges = []
    for cidr in deny:
        if not isinstance(cidr, str):
            raise PolicyError(f"deny: {cidr!r} is not a string")
        try:
            ranges.append(closed_range(cidr))
        except ValueError as error:
            raise PolicyError(f"deny: {cidr!r}: {error}") from error
    return Closed(ranges) if ranges else NOTHING_CLOSED


class Verdict(NamedTuple):
    """Allowed when `reason` is None. `rule` is what decided, as text: a rule, or the mode.

    `checked` is True where the name has to be seen in the bytes as well: SNI, Host.
    """

    reason: str | None
    rule: str
    checked: bool = False

    @property
    def allowed(self) -> bool:
        return self.reason is None


class Policy:
    """Unchangeable once made."""

    __slots__ = ("_by_host", "_closed", "mode", "rules")

    def __init__(self, mode: str, rules: tuple[Rule, ...] = (), closed: Closed = NOTHING_CLOSED) -> None:
        self.mode = mode
        self.rules = rules
        self._closed = closed
        self._by_host: dict[str, list[Rule]] = {}
        for rule in rules:
            if rule.host is not None:
                self._by_host.setdefault(rule.host, []).append(rule)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self._whole() == other._whole()

    def __hash__(self) -> int:
        return hash(self._whole())

    def _whole(self) -> tuple[object, ...]:
        return self.mode, self.rules, self._closed.ranges

    @classmethod
    def parse(cls, document: Any) -> Policy:
        """Raises PolicyError for whatever is no policy document."""
        if not isinstance(document, dict) or set(document) - {"mode", "rules", "deny"}:
            raise PolicyError("a policy has mode, rules and deny, and nothing else")
        mode, rules, deny = document.get("mode"), document.get("rules", []), document.get("deny", [])
        if mode not in MODES:
            raise PolicyError(f"mode {mode!r} is not one of {', '.join(MODES)}")
        if not isinstance(rules, list):
            raise PolicyError("rules is not a list")
        if rules and mode != "rules":
            raise PolicyError(f"mode {mode} has no rules")
        if len(rules) > MAX_RULES:
            raise PolicyError(f"{len(rules)} rules are more than {MAX_RULES}")
        if deny and mode != "open":
            raise PolicyError(f"mode {mode} has nothing to deny")
        policy = cls(mode, tuple(Rule.parse(rule, index) for index, rule in enumerate(rules)), _closed(deny))
        if (size := len(json.dumps(policy.to_document()))) > MAX_DOCUMENT_BYTES:
            raise PolicyError(f"the document has {size} bytes, more than {MAX_DOCUMENT_BYTES}")
        return policy

    def to_document(self) -> dict[str, Any]:
        denied = [str(network) for network in self._closed.ranges]
        rules = [rule.to_document() for rule in self.rules]
        return {"mode": self.mode, "rules": rules, **({"deny": denied} if denied else {})}

    def _named(self, name: str) -> list[Rule]:
        """Rules that match the name at some port: the exact ones first, then the nearest suffix."""
        table = self._by_host
        found = list(table.get(name, ()))
        rest = name
        while (dot := rest.find(".")) >= 0:
            rest = rest[dot + 1 :]
            found += table.get(f"*.{rest}", ())
        return found

    def resolves(self, name: str) -> bool:
        """Whether the resolver has an address for it: it is allowed at some port. `name` is lower case, undotted."""
        if not is_name(name):
            return False
        return self.mode == "open" or (self.mode == "rules" and bool(self._named(name)))

    def closes(self, address: Address) -> Verdict | None:
        """The refusal of an address that `deny` has, also of one that an allowed name leads to; None for any other."""
        network = self._closed.holds(address)
        return None if network is None else Verdict(ADDRESS_DENIED, f"deny {network}")

    def by_name(self, name: str, port: int) -> Verdict:
        """For a connection that was dialled by a name of the resolver's. `closes` comes on top of it."""
        if self.mode == "deny" or not is_name(name):
            return Verdict(NAME_NOT_ALLOWED, self.mode)
        if self.mode == "open":
            return Verdict(None, "open")
        found = self._named(name)
        for rule in found:
            if rule.opens(port):
                return Verdict(None, str(rule), checked=True)
        return Verdict(PORT_NOT_ALLOWED, str(found[0])) if found else Verdict(NAME_NOT_ALLOWED, "rules")

    def by_address(self, address: Address, port: int) -> Verdict:
        """For a connection that was dialled by an address. The floor comes on top of it."""
        if self.mode == "deny":
            return Verdict(ADDRESS_NOT_ALLOWED, "deny")
        if self.mode == "open":
            return self.closes(address) or Verdict(None, "open")
        near = None
        for rule in self.rules:
            if rule.network is not None and address in rule.network:
                if rule.opens(port):
                    return Verdict(None, str(rule))
                near = near or rule
        return Verdict(PORT_NOT_ALLOWED, str(near)) if near else Verdict(ADDRESS_NOT_ALLOWED, "rules")


DENY = Policy("deny")
