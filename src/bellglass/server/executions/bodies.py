"""Bodies of requests about executions that the shared records don't have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bellglass.model import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSignal(Record):
    """`signal` by name or number; `tree` reaches every process of the execution, `process` the command alone."""

    signal: str | int
    scope: Literal["tree", "process"] = "tree"
