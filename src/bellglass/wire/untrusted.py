"""JSON of whoever may mean ill, read so that nothing behind it can stumble: it is a value that every reader can write
again, or a ValueError.

`json` alone raises RecursionError for what is nested deeply, at a depth that depends on how full the stack is, makes an
infinity of `1e999`, and takes NaN for JSON.
"""

from __future__ import annotations

import json
import math
from typing import Any

DEEPEST = 100
"""Lists and objects in each other. Far below what any reader's stack has room for."""


def parse(text: str | bytes, *, deepest: int | None = DEEPEST) -> Any:
    """One JSON value; with `deepest` None the caller looks at the depth itself (`is_deep`). Raises ValueError for
    whatever is none."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if deepest is not None and is_deep(value, deepest):
        raise ValueError(f"it is nested more than {deepest} deep")
    return value


def is_deep(value: Any, deepest: int = DEEPEST) -> bool:
    """Whether lists and objects lie in each other more than so deep."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(deepest):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return bool(level)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond every number")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
