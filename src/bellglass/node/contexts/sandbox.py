"""What contexts need of their sandbox."""

from __future__ import annotations

from typing import Any, Protocol

from bellglass.node.contexts.store import ContextRows
from bellglass.node.executions.registry import Executions
from bellglass.node.guestlink.session import GuestSession


class ContextSandbox(Protocol):
    sandbox_id: str
    session: GuestSession
    executions: Executions
    context_rows: ContextRows

    @property
    def closed(self) -> bool:
        """It has ended, or its node stops: nothing is begun or stored any more."""

    @property
    def frozen(self) -> bool:
        """Its executions stand still."""

    def active(self) -> None:
        """Something happens in it."""

    def oom_kills(self) -> int:
        """How many of its processes were killed for memory so far."""

    def spawn(self, coroutine: Any, name: str) -> None:
        """A task that ends with the sandbox."""
