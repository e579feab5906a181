"""What happened in a sandbox and what its programs wrote, as lines in the order of time."""

from __future__ import annotations

import dataclasses

from bellglass.record import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogLine(Record):
    """`kind` is `stdout` or `stderr` for a line that an execution wrote, `started` or `ended` for an execution itself,
    else the type of an event, such as `sandbox.running`."""

    time: str
    kind: str
    execution_id: str | None
    text: str
    """Without the line's end; bytes that are no UTF-8 are replaced."""
    truncated: bool = False
    """The line was longer, or its beginning is gone."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogPage(Record):
    """`cursor` goes on at its end, in the same direction and with the same filters; with `more` there are more now. A
    search may take several pages, some of them without a line."""

    items: list[LogLine]
    cursor: str
    more: bool
