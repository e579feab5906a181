"""OTLP/HTTP logs as JSON: each event is a log record whose attributes are its fields.

https://opentelemetry.io/docs/specs/otlp/ (64-bit numbers are text in it).
"""

from __future__ import annotations

import json
from typing import Any

import structlog

from bellglass.model import parse_time
from bellglass.server.events.sinks.base import Record, Source
from bellglass.server.events.sinks.http import Collector
from bellglass.wire import untrusted

PATH = "/v1/logs"
INFO, WARN = (9, "INFO"), (13, "WARN")
log = structlog.get_logger("bellglass.events")


class Otlp:
    """`endpoint` without the path: it is the base of all signals, as in OTEL_EXPORTER_OTLP_ENDPOINT."""

    name = "otlp"

    def __init__(self, endpoint: str, headers: tuple[tuple[str, str], ...], source: Source) -> None:
        self._collector = Collector(endpoint.rstrip("/") + PATH, headers, "application/json")
        self._source = source

    async def send(self, records: list[Record]) -> None:
        said = await self._collector.post(json.dumps(document(records, self._source)).encode())
        if (rejected := _rejected(said)) is not None:
            # The protocol forbids to send them again.
            log.warning("the collector has rejected events", collector=self._collector.where, **rejected)

    async def close(self) -> None:
        await self._collector.close()


def document(records: list[Record], source: Source) -> dict[str, Any]:
    resource = {"service.name": "bellglass", "service.version": source.version}
    resource["service.instance.id"] = source.installation
    scope = {"name": "bellglass.events", "version": source.version}
    logs = {"scope": scope, "logRecords": [_log_record(record) for record in records]}
    return {"resourceLogs": [{"resource": {"attributes": _attributes(resource)}, "scopeLogs": [logs]}]}


def _log_record(record: Record) -> dict[str, Any]:
    number, text = WARN if record["type"].startswith(("egress.", "events.")) else INFO
    fields = {"bellglass.event.id": record["id"], "bellglass.event.seq": record["seq"], "event.name": record["type"]}
    fields["bellglass.project.id"] = record["project_id"]
    fields["bellglass.sandbox.id"] = record["sandbox_id"]
    fields |= {f"bellglass.{name}": value for name, value in record["data"].items()}
    nanoseconds = str(int(parse_time(record["time"]).timestamp() * 1_000_000) * 1000)
    return {
        "timeUnixNano": nanoseconds,
        "observedTimeUnixNano": nanoseconds,
        "severityNumber": number,
        "severityText": text,
        "eventName": record["type"],
        "body": {"stringValue": _sentence(record)},
        "attributes": _attributes(fields),
    }


def _sentence(record: Record) -> str:
    data = record["data"]
    where = data.get("host") or data.get("address")
    if where is None:
        return str(record["type"])
    port = "" if data.get("port") is None else f":{data['port']}"
    return f"{record['type']} {where}{port} ({data.get('reason')})"


def _attributes(fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in fields.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"stringValue": json.dumps(value, separators=(",", ":"))}


def _rejected(said: bytes) -> dict[str, Any] | None:
    """What `partialSuccess` of the answer tells; None when all were taken."""
    try:
        partial = untrusted.parse(said)["partialSuccess"]
        count = int(partial.get("rejectedLogRecords") or 0)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return {"count": count, "reason": str(partial.get("errorMessage", ""))[:200]} if count else None
