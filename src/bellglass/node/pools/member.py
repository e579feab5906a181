"""One machine of a pool from its making to its claim or its end, and the counts of a pool."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from bellglass.model import SandboxSpec, now
from bellglass.node.image.template import BuiltTemplate
from bellglass.node.journal import SandboxRow
from bellglass.node.live import LiveSandbox

MISSES = ("empty", "shape", "template", "inputs", "died")
"""Why a create found no member: none was ready; it asked for another size or tier; for a template that was replaced a
moment ago; it has inputs, which are mounted at a machine's start; the one it was promised died first."""


@dataclass(slots=True, eq=False)
class Member:
    """`state`: `filling`, `ready`, `taken` (promised to a create), `claiming`, `claimed`, or `draining`."""

    row: SandboxRow
    spec: SandboxSpec
    state: str
    template: BuiltTemplate | None = None
    """What it is made from, for its making."""
    live: LiveSandbox | None = None
    lapse: asyncio.TimerHandle | None = None
    filling: asyncio.Task[None] | None = None
    began: float = field(default_factory=time.monotonic)
    background: bool = False
    """Its making steps back behind what somebody waits for."""
    awaited: bool = False
    """A create waits for its making to end."""

    @property
    def id(self) -> str:
        return self.row.id

    def take(self, timer: asyncio.TimerHandle) -> None:
        self.state, self.lapse = "taken", timer

    def leave(self, state: str) -> None:
        """Into another state; a promise is over."""
        if self.lapse is not None:
            self.lapse.cancel()
            self.lapse = None
        self.state = state

    def can_serve(self) -> bool:
        return self.live is not None and self.live.session.link_is_up


@dataclass(slots=True)
class Tally:
    """What became of creates, since this node started."""

    hits: int = 0
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MISSES, 0))
    since: str = field(default_factory=now)
    problem: str | None = None
    """Why the last refill was not made; None when it was."""
    failures: int = 0
    """Refills in a row that were not made."""
    pause_until: float = 0.0
    """Monotonic: no refill before."""
    claimed_at: float = 0.0
    """Monotonic: when a create last took a member."""

    def failed(self, why: str, pause_s: float) -> None:
        self.problem, self.failures = why, self.failures + 1
        self.pause_until = time.monotonic() + pause_s

    def made(self) -> None:
        self.problem, self.failures, self.pause_until = None, 0, 0.0

    def to_json(self) -> dict[str, Any]:
        return {"hits": self.hits, "misses": dict(self.misses), "counted_since": self.since, "problem": self.problem}
