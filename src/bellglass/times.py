"""The API's times: RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """The present as RFC 3339 in UTC, with microseconds."""
    return format_time(datetime.now(UTC))


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
