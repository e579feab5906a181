"""What happened to sandboxes and projects, in the order in which the server came to know it."""

from __future__ import annotations

import dataclasses
from typing import Any

from bellglass.record import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event(Record):
    """`seq` grows with each event, with gaps; as text it is a cursor. `time` is when it happened.

    Of `type` `egress.refused` `data` has `protocol` (tcp, dns), `host`, `address`, `port`, `reason`, `rule` and `count`
    (how often, within a second); of `egress.suppressed` a `count` of refusals that are not listed."""

    seq: int
    time: str
    type: str
    sandbox_id: str | None
    data: dict[str, Any]
