"""What a sandbox may reach.

A network is `"deny"` (nothing), `"open"` (every public address), or a NetworkPolicy: nothing but what its presets and
rules name, or every public address but what it denies. Private, metadata and the host's own addresses stay closed under
each of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from bellglass.record import Record

MAX_RULES = 256
MAX_DENIED = 256
MAX_RULE_PORTS = 64
MAX_PRESETS = 16
DEFAULT_PORTS = (443,)
MODES = ("rules", "open")
"""Of a NetworkPolicy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRule(Record):
    """One destination that is allowed: a `host` or a `cidr`, and the `ports` of it: a list, or "any"."""

    host: str | None = None
    """A name, or `*.example.com` for every name below example.com (not itself)."""
    cidr: str | None = None
    """IPv4 addresses that may be dialed as they are, such as "203.0.114.0/24"."""
    ports: list[int] | Literal["any"] = dataclasses.field(default_factory=lambda: list(DEFAULT_PORTS))
    protocol: str = "tcp"

    def document(self) -> dict[str, Any]:
        """As it stands in the policy's document that proxy and resolver take."""
        where = {"host": self.host} if self.host is not None else {"cidr": self.cidr}
        return {**where, "ports": self.ports, "protocol": self.protocol, "origin": "allow"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPolicy(Record):
    """`presets` are names of the installation (`pip`, `npm`, `apt`); in `allow` "api.example.com:443" stands for a
    rule. With `mode` "open" all that is public is open but for `deny`, and the two others are empty."""

    presets: list[str] = dataclasses.field(default_factory=list)
    allow: list[NetworkRule | str] = dataclasses.field(default_factory=list)
    mode: Literal["rules", "open"] = "rules"
    deny: list[str] = dataclasses.field(default_factory=list)
    """Addresses and CIDRs, IPv4 and IPv6, also for names that lead to them."""

    def to_json(self) -> dict[str, Any]:
        """Without what its mode has no use for, unless that says something: then whoever reads it refuses it."""
        used = ("mode", "deny") if self.mode == "open" else ("presets", "allow")
        says_nothing: tuple[Any, ...] = ([], MODES[0])
        whole = Record.to_json(self).items()
        return {key: value for key, value in whole if key in used or value not in says_nothing}

    def rules(self) -> list[NetworkRule]:
        """Of one that a server has answered: there all are written out."""
        return [rule for rule in self.allow if isinstance(rule, NetworkRule)]


Network = Literal["deny", "open"] | NetworkPolicy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PutNetwork(Record):
    """The body of a sandbox's network: it replaces what was set before."""

    network: Network


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRule(Record):
    """A rule as it is in force. `origin` is `allow`, or the preset that it comes from: `preset:pip`."""

    host: str | None = None
    cidr: str | None = None
    ports: list[int] | Literal["any"]
    protocol: str
    origin: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTraffic(Record):
    """What proxy and resolver have counted since they were started: connections that are open and that were allowed,
    their bytes, refusals by reason, names that got an address, and questions that got none."""

    open: int = 0
    allowed: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    refused: dict[str, int] = dataclasses.field(default_factory=dict)
    dns_answered: int = 0
    dns_refused: int = 0
    dns_bad: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxNetwork(Record):
    """`generation` counts the changes. `resolved` is None for a sandbox that does not run; `traffic` also in the answer
    to a change, and while proxy or resolver don't tell."""

    network: Network
    generation: int
    resolved: list[ResolvedRule] | None
    traffic: NetworkTraffic | None = None


def check_known(value: Mapping[str, Any]) -> None:
    """For those who enforce a network: what another release says of it in ways that this one does not know would count
    for nothing. Raises ValueError."""
    rules = value.get("allow", ())
    if not isinstance(rules, (list, tuple)):
        raise ValueError("allow is no list")
    for what, known in ((value, NetworkPolicy), *((rule, NetworkRule) for rule in rules if isinstance(rule, Mapping))):
        if strange := set(what) - {field.name for field in dataclasses.fields(known)}:
            raise ValueError(f"unknown field {min(strange)!r}")
    if (mode := value.get("mode", MODES[0])) not in MODES:
        raise ValueError(f"unknown mode {mode!r}")


def read_network(value: Any) -> Network:
    """What `to_json` of one gave, or a node's journal holds; `Network` values pass. What is none is `"deny"`."""
    if isinstance(value, NetworkPolicy):
        return value
    if isinstance(value, Mapping):
        return NetworkPolicy.from_json(value)
    return "open" if value == "open" else "deny"
