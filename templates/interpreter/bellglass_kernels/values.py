"""Values of Python as JSON has them."""

import datetime
import math
from typing import Any

MAX_CELLS = 500_000
"""Of a frame. A longer one is shown, and its data left out."""


class Dropped:
    """Stands for a representation that is too long to be made."""

    def __init__(self, length: int) -> None:
        self.length = length


def plain(value: Any) -> Any:
    """A number, text, truth value or None; times as ISO 8601, what is not finite or missing as None."""
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value != value:  # NaT, and the like of others
        return None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[us]").item().isoformat())
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return plain(value.item())
    return str(value)


def frame(found: Any) -> dict[str, list[Any]] | Dropped:
    """The columns of a pandas frame."""
    if found.size > MAX_CELLS:
        return Dropped(found.size)
    empty = found.isna()
    return {
        str(name): [
            None if gone else plain(value)
            for value, gone in zip(found.iloc[:, number].tolist(), empty.iloc[:, number].tolist(), strict=True)
        ]
        for number, name in enumerate(found.columns)
    }


def finite(value: Any) -> Any:
    """The same without the numbers that JSON doesn't have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
