"""The contexts of one sandbox. Those that are named like a language are its defaults, made when they are first used."""

from __future__ import annotations

import logging
import time
from typing import Any

from bellglass.errors import BellglassError, Conflict, InvalidRequest, LimitExceeded, NotFound
from bellglass.ids import CONTEXT_ID
from bellglass.model import LANGUAGES
from bellglass.node.contexts.context import Context
from bellglass.node.contexts.host import Surroundings
from bellglass.node.contexts.sandbox import ContextSandbox
from bellglass.node.contexts.store import StoredContext

MOST = 64
log = logging.getLogger("bellglass.contexts")


class Contexts:
    """Rows are read at the first use."""

    def __init__(self, live: ContextSandbox) -> None:
        self._live = live
        self._table: dict[str, Context] | None = None

    def adopt(self) -> None:
        """After a restart of the node, once the executions were adopted."""
        for context in self._all().values():
            if context.row.deleting:
                self._live.spawn(self._delete(context), f"context:delete:{context.id}")
            else:
                context.adopt()

    def records(self) -> list[dict[str, Any]]:
        """Oldest first."""
        return [context.record() for context in self._all().values() if not context.row.deleting]

    def get(self, context_id: str) -> Context:
        """Raises NotFound."""
        context = self._all().get(context_id)
        if context is None or context.row.deleting:
            raise NotFound(f"no context {context_id!r} in this sandbox", details={"field": "id"})
        return context

    def get_or_default(self, context_id: str, around: Surroundings) -> Context:
        """A language's name makes its default context. Raises NotFound, LimitExceeded."""
        if context_id in LANGUAGES and context_id not in self._all():
            return self._add(context_id, context_id, around)
        return self.get(context_id)

    async def create(self, context_id: str, language: str, around: Surroundings) -> Context:
        """Until its kernel is ready; again with the same id it is the same. Raises Conflict (it is another), NotFound
        (malformed), InvalidRequest, LimitExceeded and as Context.start does: then nothing is left."""
        if not CONTEXT_ID.fullmatch(context_id):
            raise NotFound(f"no context {context_id!r}", details={"field": "id"})
        if language not in LANGUAGES:
            raise InvalidRequest(
                f"language: {language!r} is none of {', '.join(LANGUAGES)}", details={"field": "language"}
            )
        if (context := self._all().get(context_id)) is not None:
            if (context.row.language, context.row.cwd) != (language, around.cwd) or context.row.deleting:
                raise Conflict(f"context {context_id} exists and is another one", details={"field": "id"})
        else:
            context = self._add(context_id, language, around)
        try:
            await context.start(around)
        except BellglassError:
            if not self._live.closed:
                await self.delete(context)
            raise
        return context

    def drop_unused(self, context: Context) -> None:
        """A default one that could not be started for its first run."""
        if context.id in LANGUAGES and not context.row.runs and not self._live.closed:
            self._live.context_rows.remove(self._live.sandbox_id, context.id)
            self._all().pop(context.id, None)

    async def delete(self, context: Context) -> None:
        """Until all its processes are dead."""
        context.mark_deleting()
        self._live.spawn(self._delete(context), f"context:delete:{context.id}")
        await context.gone.wait()

    def resting(self) -> set[str]:
        """The executions of hosts that run no code now."""
        if self._table is None:
            return set()
        resting = (context.row.execution_id for context in self._table.values() if not context.busy)
        return {execution_id for execution_id in resting if execution_id is not None}

    # --- inside -----------------------------------------------------------------------------------------

    def _all(self) -> dict[str, Context]:
        if self._table is None:
            rows = self._live.context_rows.of(self._live.sandbox_id)
            self._table = {row.id: Context(self._live, row) for row in rows}
        return self._table

    def _add(self, context_id: str, language: str, around: Surroundings) -> Context:
        table = self._all()
        if len(table) >= MOST:
            raise LimitExceeded(
                f"{len(table)} contexts are in this sandbox, the most is {MOST}", hint="delete one of them"
            )
        row = StoredContext(context_id, language, around.cwd, around.user, time.time())
        self._live.context_rows.put(self._live.sandbox_id, row)
        context = table[context_id] = Context(self._live, row)
        return context

    async def _delete(self, context: Context) -> None:
        try:
            await context.end_host("deleted")
            self._live.context_rows.remove(self._live.sandbox_id, context.id)
            if self._table is not None and self._table.get(context.id) is context:
                del self._table[context.id]
        finally:
            context.gone.set()
