"""The engine. On SQLite: WAL, a write is on disk when its commit returns (`synchronous=FULL`), foreign keys hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event

WRITER = "bellglass_writer"
"""Execution option of the connection that writes: it takes SQLite's write lock when a transaction begins."""

READER = "bellglass_reader"
"""Execution option of a connection that only reads and stays outside of transactions."""


def open_engine(database: Path) -> Engine:
    # Parameters hold environments and the like, and the text of a database error ends up in the log.
    engine = create_engine(f"sqlite:///{database}", pool_size=4, max_overflow=8, hide_parameters=True)
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def _set_up(connection: Any, record: object) -> None:
    # 512 KiB of cache in place of 2 MiB, for each connection: the kernel has the file's pages too.
    # The sqlite3 module would begin transactions only at the first write and commit around DDL; it is done in _begin.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000", "cache_size=-512"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get(READER):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(WRITER) else "BEGIN")
