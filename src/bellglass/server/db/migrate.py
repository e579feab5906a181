"""Bringing a database up to the newest schema. Forward only.

Alembic is loaded only where there is something to do, and then in a process of its own: it would stay in the
server's memory for ever. `python -m bellglass.server.db.migrate FILE` is that process.
"""

from __future__ import annotations

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
