"""How a connection ends that does not come about."""

from __future__ import annotations


class Refused(Exception):
    """By the policy, the floor, or what the client said. `host` and `rule` where they differ from the connection's."""

    def __init__(self, reason: str, *, host: str | None = None, rule: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.host = host
        self.rule = rule


class Failed(Exception):
    """Allowed, but it didn't come about: lookup_failed, connect_failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
