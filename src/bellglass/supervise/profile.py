"""The client profile: where `Sandbox("base")` finds this box's API and a key for it.

`bellglass up` makes a project `default` with one key when there is no profile that works, and writes the key to the
profile of the person who ran it (also through sudo), mode 0600. Only `up --json` shows it.
"""

from __future__ import annotations

import json
import os
import pwd
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bellglass.datadir import DataDir
from bellglass.errors import BellglassError, ConnectionFailed, from_dict
from bellglass.supervise.install import Identity

_FILE = "bellglass/profile.json"


@dataclass(frozen=True, slots=True)
class Profile:
    api_url: str
    api_key: str
    data_dir: str


def profile_files() -> list[tuple[Path, Identity]]:
    """Where the profiles of the calling person lie, and whose each is to be. Under sudo there are two: that of who
    called it, and root's own, for the shell that `sudo -s` opens."""
    if named := os.environ.get("BELLGLASS_PROFILE"):
        return [(Path(named), Identity(os.getuid(), os.getgid()))]
    if os.geteuid() == 0 and (name := os.environ.get("SUDO_USER")):
        with suppress(KeyError):
            entries = {entry.pw_uid: entry for entry in (pwd.getpwnam(name), pwd.getpwuid(0))}
            return [
                (Path(entry.pw_dir) / ".config" / _FILE, Identity(entry.pw_uid, entry.pw_gid))
                for entry in entries.values()
            ]
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [(base / _FILE, Identity(os.getuid(), os.getgid()))]


def ensure(data: DataDir, api_url: str) -> Profile:
    """The installation's own copy of the profile, with a key that works; made or renewed as needed."""
    own = data.client_file
    key = None
    if own.exists():
        key = json.loads(own.read_text()).get("api_key")
        if key is not None and _status(api_url, "/v1/me", key) == 401:
            key = None
    if key is None:
        admin_key = data.admin_key_file.read_text().strip()
        key = call(api_url, "POST", "/v1/keys", admin_key, {"project": "default", "label": "bellglass up"})["secret"]
    profile = Profile(api_url, key, str(data.root))
    _write(own, profile, Identity(os.geteuid(), os.getegid()))
    return profile


def publish(profile: Profile, files: Iterable[tuple[Path, Identity]]) -> None:
    """Write a person's profile files. Folders that are missing are made theirs too."""
    for file, owner in files:
        missing = [folder for folder in (file.parent, *file.parent.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700)
            os.chown(folder, owner.uid, owner.gid)
        _write(file, profile, owner)


def call(api_url: str, method: str, path: str, key: str, body: Any = None) -> dict[str, Any]:
    """One call of the API. The supervisor needs three of them, so it does without the SDK's client."""
    request = urllib.request.Request(
        api_url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    # A proxy of the environment is for the outside, never for this box's own API.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raw = error.read()
        try:
            shape = json.loads(raw)
        except ValueError:
            shape = None
        raise from_dict(shape, status=error.code) from error
    except (urllib.error.URLError, OSError) as error:
        raise ConnectionFailed(f"no answer from {api_url}: {error}") from error


def _status(api_url: str, path: str, key: str) -> int:
    try:
        call(api_url, "GET", path, key)
    except BellglassError as error:
        return error.status
    return 200


def _write(file: Path, profile: Profile, owner: Identity) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump({"api_url": profile.api_url, "api_key": profile.api_key, "data_dir": profile.data_dir}, handle)
        os.fchown(descriptor, owner.uid, owner.gid)
    temporary.rename(file)
