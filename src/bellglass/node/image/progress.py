"""How far a template's build is, by the phase it is in, as a bar on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

SHARES: tuple[tuple[str, float], ...] = (
    ("Debian", 0.0),
    ("starting a sandbox", 0.0),
    ("running apt-get update", 0.05),
    ("step", 0.05),
    ("downloading packages", 0.12),
    ("extracting archives", 0.3),
    ("installing essential", 0.38),
    ("installing remaining", 0.55),
    ("packing", 0.75),
    ("unpacking", 0.8),
    ("hook", 0.85),
    ("cleaning", 0.92),
    ("measuring", 0.95),
)
"""The phases that take time, of builds from packages and of those in a sandbox, by how their text begins, and the share
of a build that lies before each."""
PHASE_WIDTH = 30
"""Characters of a phase that stand beside the bar, so that both fit into 80 columns."""


def share_before(phase: str) -> float | None:
    """0 to 1, or None for a phase that says nothing of how far it is."""
    return next((share for start, share in SHARES if phase.startswith(start)), None)


class BuildProgress:
    """`show` each phase; the bar goes at the end of the block or with `stop`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: TaskID | None = None
        # Drawn when a phase begins and by no thread: the caller may fork.
        self._bar = Progress(
            TextColumn("  template {task.fields[template]}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=Console(file=sys.stdout),
            auto_refresh=False,
            transient=True,
        )

    def show(self, phase: str) -> None:
        share = share_before(phase)
        if len(phase) > PHASE_WIDTH:
            phase = phase[: PHASE_WIDTH - 1] + "…"
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(phase, total=1.0, template=self._name)
        self._bar.update(self._task, description=phase)
        if share is not None:
            self._bar.update(self._task, completed=share)
        self._bar.refresh()

    def stop(self) -> None:
        """The bar goes. Safe to repeat."""
        if self._task is not None:
            self._bar.stop()
            self._task = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
