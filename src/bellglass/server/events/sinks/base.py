"""What a sink is, and the form in which all of them get events."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from sqlalchemy import Row

Record = dict[str, Any]
"""`id` (of this installation and event: a repeat has the same), `seq`, `time`, `type`, `project_id`, `sandbox_id`,
`data`."""


class SinkFailed(Exception):
    """The records were not taken, or that is not known. `retry_after_s` is what the collector asks for; `too_large`:
    fewer at once may do."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, too_large: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.too_large = too_large


class Sink(Protocol):
    name: str
    """Names its cursor: `jsonl`, `otlp`, `file`."""

    async def send(self, records: list[Record]) -> None:
        """Returns once they are taken. Raises SinkFailed."""

    async def close(self) -> None: ...


class Source(NamedTuple):
    """Who sends."""

    installation: str
    version: str

    def record(self, row: Row[Any]) -> Record:
        return {
            "id": f"{self.installation}-{row.seq}",
            "seq": row.seq,
            "time": row.at,
            "type": row.type,
            "project_id": row.project_id or None,
            "sandbox_id": row.sandbox_id,
            "data": row.data,
        }

    def gap(self, sink: str, seq: int, dropped: int, time: str) -> Record:
        """In place of events that were dropped before this sink had them, behind number `seq`."""
        return {
            "id": f"{self.installation}-{sink}-{seq}-{dropped}",
            "seq": seq,
            "time": time,
            "type": "events.dropped",
            "project_id": None,
            "sandbox_id": None,
            "data": {"count": dropped, "sink": sink},
        }
