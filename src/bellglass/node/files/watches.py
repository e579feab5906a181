"""How many watches one sandbox has open, and what they may cost the node."""

from __future__ import annotations

from bellglass.node.guestlink.budget import CpuBudget


class Watches:
    """Those of one sandbox."""

    def __init__(self) -> None:
        self.open = 0
        self.budget = CpuBudget()
