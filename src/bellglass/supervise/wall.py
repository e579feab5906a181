"""Taking down the wall that the node's helper has raised around proxy and resolver: once they have ended."""

from __future__ import annotations

import os
import shutil
import subprocess

from bellglass.errors import SandboxFailed


def lower(installation: str) -> None:
    """None is success. Raises SandboxFailed."""
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin")
    if os.geteuid() != 0 or nft is None:
        return  # then there was never one
    table = f"inet bellglass_{installation}"
    # Declared first, so that deleting it can't fail for its absence.
    rules = f"table {table}\ndelete table {table}\n"
    done = subprocess.run([nft, "--file", "-"], input=rules, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SandboxFailed(f"nft delete table {table}: {done.stderr.strip()}")
