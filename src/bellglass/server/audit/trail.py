"""Audit entries, collected and written together within a second; `last_used_at` of keys rides along.

An entry says who, which action, which ids, the outcome and the request id. It never holds a body, a command, a path
or a header. Reads are left out unless they were refused or read a sandbox's files.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from sqlalchemy import Connection, insert

from bellglass.model import now
from bellglass.server.auth import store as keys
from bellglass.server.auth.service import ADMIN_KEY_ID, Auth
from bellglass.server.db.tables import audit
from bellglass.server.db.writer import Writer
from bellglass.server.http.context import Context

FLUSH_S = 0.5
TOUCH_S = 60.0
MAX_WAITING = 20_000
REFUSED = frozenset({403, 404})
_MAX_ID = 64
log = structlog.get_logger("bellglass.audit")


def add(connection: Connection, action: str, project_id: str | None, objects: dict[str, str]) -> None:
    """An entry about what the server did by itself."""
    entry = {"at": now(), "project_id": project_id, "key_id": None, "action": action, "objects": objects}
    connection.execute(insert(audit).values(**entry, status=200, code=None, request_id="server"))


class AuditTrail:
    def __init__(self, writer: Writer, auth: Auth) -> None:
        self._writer = writer
        self._auth = auth
        self._waiting: list[dict[str, Any]] = []
        self._wake = asyncio.Event()
        self._touched_at = 0.0

    def finished(self, context: Context, status: int) -> None:
        """Called after each answer."""
        principal = context.principal
        if principal is None or context.action is None:
            return
        if context.audited or status in REFUSED:
            self._waiting.append(
                {
                    "at": now(),
                    "project_id": principal.project_id,
                    "key_id": principal.key_id,
                    "action": context.action,
                    "objects": {name: value[:_MAX_ID] for name, value in context.objects.items()},
                    "status": status,
                    "code": context.error_code,
                    "request_id": context.request_id,
                }
            )
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            # A pause and not a timer from the first entry: what comes in meanwhile shares the commit.
            await asyncio.sleep(FLUSH_S)
            self._wake.clear()
            try:
                await self.flush()
            except Exception:  # a full disk must not end the audit for good; entries are kept and tried again
                log.exception("audit entries could not be written", waiting=len(self._waiting))
                self._wake.set()

    async def flush(self) -> None:
        """Write what is waiting. On failure it waits on, up to a bound."""
        loop = asyncio.get_running_loop()
        entries, self._waiting = self._waiting, []
        used = []
        if loop.time() - self._touched_at >= TOUCH_S or self._touched_at == 0.0:
            used = [key_id for key_id in self._auth.take_used() if key_id != ADMIN_KEY_ID]
            self._touched_at = loop.time() if used else self._touched_at
        if not entries and not used:
            return

        def write(connection: Connection) -> None:
            if entries:
                connection.execute(insert(audit), entries)
            if used:
                keys.touch_keys(connection, used, now())

        try:
            await self._writer.run(write, spends=False)
        except Exception:
            self._waiting = (entries + self._waiting)[-MAX_WAITING:]
            raise
