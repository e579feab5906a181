"""What one sandbox is told about names: the decisions, without sockets."""

from __future__ import annotations

from collections.abc import Callable

from bellglass.egress.events import Events
from bellglass.egress.policy import Policy
from bellglass.egress.resolver import wire
from bellglass.egress.resolver.names import Names

TTL_S = 30
REPEAT_S = 1.0
"""A refused name is one event for so long: programs ask for A and AAAA, and try again."""
MAX_RECENT = 256
_LOOPBACK = {wire.A: b"\x7f\x00\x00\x01", wire.AAAA: b"\x00" * 15 + b"\x01"}


class Zone:
    """The names of one sandbox under its policy. `counts` by what became of a query."""

    __slots__ = ("_clock", "_events", "_policy", "_recent", "_sandbox", "counts", "names")

    def __init__(self, sandbox: str, policy: Policy, events: Events, clock: Callable[[], float]) -> None:
        self._sandbox, self._policy, self._events, self._clock = sandbox, policy, events, clock
        self._recent: dict[str, float] = {}
        self.names = Names(salt=sandbox)
        self.follow(policy)
        self.counts = {"dns_queries": 0, "dns_answered": 0, "dns_refused": 0, "dns_bad": 0, "dns_limited": 0}

    def follow(self, policy: Policy) -> None:
        """From now on. Names that are still allowed keep their addresses, which programs may hold."""
        self._policy = policy
        self.names.follow((rule.host for rule in policy.rules if rule.host and rule.host[0] != "*"), policy.resolves)

    def respond(self, packet: bytes) -> bytes | None:
        """The answer to a packet, None where it gets none."""
        self.counts["dns_queries"] += 1
        try:
            question = wire.parse(packet)
        except wire.Ignored:
            self.counts["dns_bad"] += 1
            return None
        except wire.Malformed as error:
            self._tell("bad_query", None)
            return error.answer
        if not question.is_plain or question.name is None:
            self._tell("bad_query", question.shown())
            return question.answer(wire.NXDOMAIN if question.is_plain else wire.REFUSED)
        if self._is_own(question.name):
            self.counts["dns_answered"] += 1
            return question.answer(address=_LOOPBACK.get(question.type), ttl=TTL_S)
        if not self._policy.resolves(question.name):
            self._tell("name_not_allowed", question.name)
            return question.answer(wire.NXDOMAIN)
        self.counts["dns_answered"] += 1
        if question.type != wire.A:
            return question.answer()
        return question.answer(address=self.names.address_of(question.name).to_bytes(4), ttl=TTL_S)

    def _is_own(self, name: str) -> bool:
        """What /etc/hosts inside knows too, for those who don't read it."""
        return name in ("localhost", self._sandbox) or name.endswith(".localhost")

    def _tell(self, reason: str, host: str | None) -> None:
        self.counts["dns_refused" if reason == "name_not_allowed" else "dns_bad"] += 1
        now, key = self._clock(), host or ""
        last = self._recent.pop(key, None)
        is_repeated = last is not None and now - last < REPEAT_S
        self._recent[key] = last if last is not None and is_repeated else now
        if len(self._recent) > MAX_RECENT:
            del self._recent[next(iter(self._recent))]
        if not is_repeated:
            self._events.refused(self._sandbox, kind="dns", reason=reason, rule=self._policy.mode, host=host)
