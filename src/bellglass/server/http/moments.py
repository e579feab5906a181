"""Query parameters that name a moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bellglass.errors import BellglassError, InvalidRequest
from bellglass.model import parse_time
from bellglass.server.http.validation import shown
from bellglass.units import parse_duration


def parse_moment(value: str | None, field: str) -> datetime | None:
    """A time, or a duration back from now. Raises InvalidRequest."""
    if value is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(value, field))
    except (BellglassError, OverflowError):
        pass
    try:
        moment = parse_time(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{field}: {shown(value)} is neither a time nor a duration",
            hint='such as "2026-11-30T09:00:00Z" or "15m"',
            details={"field": field},
        ) from None
