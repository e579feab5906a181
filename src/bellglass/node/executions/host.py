"""What an execution needs of its sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from bellglass.node.drivers.base import Groups
from bellglass.node.guestlink.session import GuestSession

if TYPE_CHECKING:
    from bellglass.node.executions.run import Run


class Host(Protocol):
    sandbox_id: str
    session: GuestSession
    groups: Groups | None
    default_cwd: str
    thawed_at: float
    """Monotonic: when its executions last went on after standing still; -inf for never."""

    @property
    def frozen(self) -> bool:
        """Its executions stand still."""

    def run_started(self, run: Run) -> None:
        """It has its stream id and is about to be sent to the agent: from here on it must be found again."""

    def input_ended(self, run: Run, offset: int) -> None:
        """Its standard input ends at `offset`; a restarted node has to know."""

    def run_resized(self, run: Run) -> None:
        """Its terminal has a new size, which is to be kept."""

    def run_finished(self, run: Run, record: dict[str, Any] | None) -> None:
        """`record` is None when it never started: then nothing is kept of it."""

    def kill_machine(self, why: str) -> None:
        """The backstop: a tree that outlives its kill takes the sandbox with it."""

    def spawn(self, coroutine: Any, name: str) -> None:
        """A task that ends with the sandbox."""
