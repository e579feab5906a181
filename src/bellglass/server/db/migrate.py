"""Bringing a database up to the newest schema. Forward only.

A new one is made from the tables at once; a test holds that to what the migrations make. Alembic is loaded only where
an older one is to be changed, and then in a process of its own: it would stay in the server's memory for ever.
`python -m bellglass.server.db.migrate FILE` is that process.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

from bellglass.server.db.migrations import HEAD


class MigrationFailed(RuntimeError):
    """The database could not be brought to this release's schema; it is as it was."""


def current_revision(database: Path) -> str | None:
    """The revision of a SQLite file; None for one that is new or empty."""
    if not database.exists():
        return None
    connection = sqlite3.connect(database)
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        return None
    finally:
        connection.close()
    return str(row[0]) if row else None


def ensure(database: Path) -> None:
    """Migrate if needed. Raises MigrationFailed with what the migration said, also for the database of a newer
    release."""
    revision = current_revision(database)
    if revision == HEAD:
        return
    if revision is None and _is_empty(database):
        _make(database)
        return
    if revision is not None and revision > HEAD:  # four digits, so text sorts as numbers do
        raise MigrationFailed(
            f"{database} has schema {revision}, this release knows up to {HEAD}: install the release that wrote it,"
            " or restore the backup from before the upgrade"
        )
    done = subprocess.run(
        [sys.executable, "-m", "bellglass.server.db.migrate", str(database)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise MigrationFailed(f"{database}: {done.stderr.strip() or f'exit code {done.returncode}'}")


def _is_empty(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def _make(database: Path) -> None:
    """All of it in one transaction."""
    from sqlalchemy import insert

    from bellglass.server.db.engine import WRITER, open_engine
    from bellglass.server.db.tables import alembic_version, metadata

    engine = open_engine(database)
    try:
        with engine.connect().execution_options(**{WRITER: True}) as connection, connection.begin():
            metadata.create_all(connection)
            alembic_version.create(connection)
            connection.execute(insert(alembic_version).values(version_num=HEAD))
    finally:
        engine.dispose()


def upgrade(database: Path, revision: str = "head") -> None:
    """Run the migrations in this process."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "bellglass.server.db:migrations")
    config.attributes["database"] = database
    command.upgrade(config, revision)


if __name__ == "__main__":
    upgrade(Path(sys.argv[1]))
