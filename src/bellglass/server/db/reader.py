"""Reads: small ones by key on the event loop, all others in a thread.

A point read takes less time than handing it to a thread would. The loop's connection stays open and never begins a
transaction, so every statement sees what was committed last, and nothing holds a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from bellglass.server.db.engine import READER

Result = TypeVar("Result")
P = ParamSpec("P")


class Reader:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection = engine.connect().execution_options(**{READER: True})

    def inline(self, query: Callable[Concatenate[Connection, P], Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """`query(connection, ...)` here and now: for single rows found by an index."""
        return query(self._connection, *args, **kwargs)

    async def in_thread(
        self, query: Callable[Concatenate[Connection, P], Result], *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        """`query(connection, ...)` in a worker thread, in a transaction of its own."""

        def work() -> Result:
            with self._engine.connect() as connection:
                return query(connection, *args, **kwargs)

        return await asyncio.to_thread(work)

    def close(self) -> None:
        self._connection.close()
