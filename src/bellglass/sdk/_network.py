"""What a sandbox may reach, as values: `Network(presets=["pip"], allow=["api.example.com:443"])`, or all but some
addresses: `Network(mode="open", deny=["203.0.114.0/24"])`.

Nothing is checked here but the kinds of the values: what a server can do it says itself, with a typed error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bellglass.model import NetworkPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One destination: a `host` or a `cidr`, its `ports` (or "any") and its `protocol` ("tcp")."""

    host: str | None = None
    cidr: str | None = None
    ports: Sequence[int] | Literal["any"] = (443,)
    protocol: str = "tcp"

    def __post_init__(self) -> None:
        if (self.host is None) == (self.cidr is None):
            raise TypeError("Rule() takes a host or a cidr, and not both")

    def to_json(self) -> dict[str, Any]:
        where = {"host": self.host} if self.host is not None else {"cidr": self.cidr}
        ports = self.ports if isinstance(self.ports, str) else list(self.ports)
        return {**where, "ports": ports, "protocol": self.protocol}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Egress is denied but for `presets` (of the server: "pip", "npm", "apt") and `allow` (rules, or "host:port").

    With `mode="open"` it is allowed to every public address but those of `deny` (addresses and CIDRs), also for names
    that lead to them."""

    presets: Sequence[str] = ()
    allow: Sequence[Rule | str] = ()
    mode: Literal["rules", "open"] = "rules"
    deny: Sequence[str] = ()

    def __post_init__(self) -> None:
        if any(isinstance(value, str) for value in (self.presets, self.allow, self.deny)):
            raise TypeError("presets, allow and deny are lists")

    def to_json(self) -> dict[str, Any]:
        rules = [rule.to_json() if isinstance(rule, Rule) else rule for rule in self.allow]
        body: dict[str, Any] = {"presets": list(self.presets), "allow": rules}
        if self.mode != "rules" or self.deny:
            body |= {"mode": self.mode, "deny": list(self.deny)}
        return body


def network_body(value: str | Network | NetworkPolicy) -> Any:
    """Its JSON. What else it may be is left as it is: the server says what is wrong with it."""
    return value.to_json() if isinstance(value, (Network, NetworkPolicy)) else value
