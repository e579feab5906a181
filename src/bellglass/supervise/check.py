"""One line of `bellglass doctor`."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    outcome: str
    """`ok`, `warn` (works, but worse) or `missing`."""
    found: str
    fix: str | None = None
    """The command that brings what is missing."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def as_root() -> str:
    """In full: sudo's PATH has no venv."""
    return f"sudo {shutil.which('bellglass') or 'bellglass'} doctor"
