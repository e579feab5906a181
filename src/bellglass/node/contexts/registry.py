"""The contexts of one sandbox. Those that are named like a language are its defaults, made when they are first used."""

from __future__ import annotations

import logging
import time
from typing import Any

from bellglass import faultpoints
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
            if context.row.deleting or not context.row.ready:
                self._begin_delete(context)
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
            return self._add(context_id, context_id, around, ready=True)
        return self.get(context_id)

    async def create(self, context_id: str, language: str, around: Surroundings) -> Context:
        """Until its kernel is ready; again with the same id it is the same. Raises Conflict (it is another), NotFound
        (malformed), InvalidRequest, LimitExceeded and as Context.start does: then nothing is left of it, and neither
        when its last caller goes away before it is ready."""
        if not CONTEXT_ID.fullmatch(context_id):
            raise NotFound(f"no context {context_id!r}", details={"field": "id"})
        if language not in LANGUAGES:
            raise InvalidRequest(
                f"language: {language!r} is none of {', '.join(LANGUAGES)}", details={"field": "language"}
            )
        context = self._all().get(context_id)
        if context is not None and context.row.deleting:
            await context.gone.wait()
            context = self._all().get(context_id)
        if context is None:
            context = self._add(context_id, language, around, ready=False)
        elif (context.row.language, context.row.cwd) != (language, around.cwd) or context.row.deleting:
            raise Conflict(f"context {context_id} exists and is another one", details={"field": "id"})
        context.creators += 1
        try:
            await context.start(around)
            context.confirm()
        except BellglassError:
            if not context.row.ready and not self._live.closed:
                self._begin_delete(context)
                await context.gone.wait()
            raise
        finally:
            context.creators -= 1
            if context.creators == 0 and not context.row.ready and not self._live.closed:
                self._begin_delete(context)
        return context

    def drop_unused(self, context: Context) -> None:
        """A default one that could not be started for its first run."""
        if context.id in LANGUAGES and not context.row.runs and not self._live.closed:
            self._live.context_rows.remove(self._live.sandbox_id, context.id)
            self._all().pop(context.id, None)

    async def delete(self, context_id: str) -> None:
        """Until all its processes are dead. Raises NotFound."""
        context = self._all().get(context_id)
        if context is None:
            raise NotFound(f"no context {context_id!r} in this sandbox", details={"field": "id"})
        self._begin_delete(context)
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

    def _add(self, context_id: str, language: str, around: Surroundings, *, ready: bool) -> Context:
        table = self._all()
        if len(table) >= MOST:
            raise LimitExceeded(
                f"{len(table)} contexts are in this sandbox, the most is {MOST}", hint="delete one of them"
            )
        row = StoredContext(context_id, language, around.cwd, around.user, time.time(), ready=ready)
        self._live.context_rows.put(self._live.sandbox_id, row)
        faultpoints.reach("node.context.row_stored")
        context = table[context_id] = Context(self._live, row)
        return context

    def _begin_delete(self, context: Context) -> None:
        if context.ending:
            return
        context.mark_deleting()
        context.ending = True
        self._live.spawn(self._delete(context), f"context:delete:{context.id}")

    async def _delete(self, context: Context) -> None:
        try:
            await context.end()
            self._live.context_rows.remove(self._live.sandbox_id, context.id)
            self._all().pop(context.id, None)
            faultpoints.reach("node.context.removed")
        finally:
            context.gone.set()
