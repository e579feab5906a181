"""An installation for the time of one build: its own data folder, its own daemons, one sandbox.

It lives under one name for each folder of templates, which is locked meanwhile. So what a killed build left is found
and brought down by the next; its supervisor has stopped the daemons by then.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bellglass.errors import InternalError

PARENT = Path("/var/tmp")
"""Daemons and sandboxes have uids of their own and must be able to pass."""
DOWN_S = 120
_CLI = [sys.executable, "-P", "-m", "bellglass.cli"]


class Api(NamedTuple):
    url: str
    key: str


def place(templates_dir: Path) -> Path:
    """Where its data folder is while it is up."""
    name = hashlib.sha256(str(templates_dir.resolve()).encode()).hexdigest()[:12]
    return PARENT / f"bellglass-build-{name}"


@contextmanager
def running(templates_dir: Path, settings: Mapping[str, Any]) -> Iterator[Api]:
    """Raises InternalError with what `bellglass up` printed."""
    folder = place(templates_dir)
    _remove(folder)
    folder.mkdir(mode=0o711)
    try:
        (folder / "bellglass.toml").write_text(_toml({**settings, "server.port": 0, "previews.port": 0}))
        # This process killed, the supervisor ends by itself.
        argv = ["setpriv", "--pdeathsig=TERM", "--", *_CLI, "up", "--json", "--port", "0", "--data-dir", str(folder)]
        log = folder / "up.log"
        with log.open("wb") as told:
            up = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=told, env=_environment(folder), cwd="/"
            )
        assert up.stdout is not None
        try:
            line = up.stdout.readline()
            if not line:
                raise InternalError(f"no installation to build in:\n{log.read_text(errors='replace')}")
            answer = json.loads(line)
            yield Api(answer["api_url"], answer["api_key"])
        finally:
            up.stdout.close()
            _down(folder)
            up.wait()
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    try:
        owner = folder.lstat().st_uid
    except FileNotFoundError:
        return
    if owner != os.geteuid():
        raise InternalError(f"{folder} belongs to uid {owner}", hint=f"look at what it is, and remove {folder}")
    _down(folder)
    shutil.rmtree(folder)


def _down(folder: Path) -> None:
    if not (folder / "installation.json").exists():
        return
    argv = [*_CLI, "down", "--sandboxes", "--data-dir", str(folder)]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, env=_environment(folder), cwd="/", timeout=DOWN_S
    )
    if done.returncode:
        raise InternalError(f"the build's installation does not end:\n{done.stderr.decode(errors='replace')}")


def _environment(folder: Path) -> dict[str, str]:
    """The caller's, with a profile of its own: that of a person who runs this stays."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLGLASS_")}
    cache = os.environ.get("BELLGLASS_CACHE")
    return kept | ({"BELLGLASS_CACHE": cache} if cache else {}) | {"BELLGLASS_PROFILE": str(folder / "profile.json")}


def _toml(settings: Mapping[str, Any]) -> str:
    # JSON's strings, numbers and lists are TOML's too; a dotted name is a key in its table.
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in sorted(settings.items()))
