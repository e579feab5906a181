"""Bringing one of the node's SQLite files up to this release's schema. Forward only, in one transaction.

`pragma user_version` counts the steps that a file has behind it. Files of the first release have 0 and the first
step's tables already, so that step only makes what is missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from bellglass.errors import VersionMismatch


def bring_forward(db: sqlite3.Connection, file: Path, steps: Sequence[Sequence[str]]) -> None:
    """Run the steps that the file lacks; each is a list of statements. Raises VersionMismatch for a file that a newer
    release has written: it is left as it is."""
    version = db.execute("pragma user_version").fetchone()[0]
    if version > len(steps):
        raise VersionMismatch(
            f"{file} has schema {version}, this release knows up to {len(steps)}",
            hint="install the release that wrote it, or restore the backup from before the upgrade",
            details={"ours": [0, len(steps)], "theirs": [version, version]},
        )
    if version == len(steps):
        return
    db.execute("begin immediate")
    try:
        for step in steps[version:]:
            for statement in step:
                db.execute(statement)
        db.execute(f"pragma user_version = {len(steps)}")
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise
