"""Which installation of this machine a command is for, and whether the one who runs it may touch it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from bellglass.datadir import DataDir, default_data_dir
from bellglass.errors import Forbidden
from bellglass.sdk._config import read_profile

# What is not for this user is said by `own`, in words of its own.
Folder = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The installation's folder.", show_default="/var/lib/bellglass", readable=False),
]


def meant(named: Path | None) -> Path:
    """The folder that is named, else the usual one of this user, or the one whose `up` wrote the profile."""
    if named is not None:
        return named.absolute()
    usual = default_data_dir().absolute()
    if os.geteuid() == 0 or usual.exists():
        return usual
    profile = read_profile()
    return Path(profile.data_dir) if profile and profile.data_dir and Path(profile.data_dir).exists() else usual


def own(named: Path | None) -> DataDir:
    """As `meant`. Raises Forbidden with the whole command under sudo where it is another user's."""
    root = meant(named)
    if os.geteuid() != 0 and root.exists() and (owner := root.stat().st_uid) != os.geteuid():
        given = named is not None or root == ROOTS
        raise Forbidden(
            f"{root} is an installation of {_name(owner)}, and you are {_name(os.geteuid())}",
            hint=f"run: {with_sudo('' if given else str(root))}",
        )
    return DataDir(root)


ROOTS = Path("/var/lib/bellglass")
"""What root means without naming a folder."""


def with_sudo(data_dir: str = "") -> str:
    """This command line under sudo, in full: its PATH has no venv."""
    words = [shutil.which("bellglass") or sys.argv[0], *sys.argv[1:]]
    return shlex.join(["sudo", *words, *(["--data-dir", data_dir] if data_dir else [])])


def _name(uid: int) -> str:
    import pwd  # not there on every system that has the client

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
