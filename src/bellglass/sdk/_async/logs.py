"""A sandbox's log, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from bellglass.model import LogLine, LogPage
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._http import sandbox_path, target

PAGE = 1000


async def read_logs(transport: AsyncTransport, sandbox_id: str, query: Mapping[str, Any]) -> AsyncIterator[LogLine]:
    """As far as there is one now."""
    cursor: str | None = None
    while True:
        path = target(sandbox_path(sandbox_id) + "/logs", {**query, "limit": PAGE, "cursor": cursor})
        page = LogPage.from_json((await transport.request("GET", path, idempotent=True)).json())
        for line in page.items:
            yield line
        cursor = page.cursor
        if not page.more:
            return
