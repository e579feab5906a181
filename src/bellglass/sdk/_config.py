"""Where the server is and which key to use: arguments, then BELLGLASS_API_URL and BELLGLASS_API_KEY, then the profile.

Inside of a sandbox BELLGLASS_API_URL leads to its node, and BELLGLASS_TOKEN stands for a key: it is the sandbox itself
that calls.

The profile is the file that `bellglass up` writes (0600). Its key goes only to the server that the profile names: an
address from elsewhere needs a key from elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bellglass.errors import ClientError, InvalidRequest

NEXT_STEP = (
    "start a server with `sudo bellglass up`, or set BELLGLASS_API_URL and BELLGLASS_API_KEY to one that runs; "
    "its operator makes a key with `bellglass keys create --project NAME`"
)


@dataclass(frozen=True, slots=True)
class Profile:
    """What `bellglass up` leaves for clients."""

    api_url: str
    api_key: str = field(repr=False)
    data_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """A server's address, taken apart once, and the key for it."""

    scheme: str
    host: str
    port: int | None
    prefix: str
    api_key: str = field(repr=False)

    @property
    def api_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{f':{self.port}' if self.port else ''}{self.prefix}"


def profile_path(environ: Mapping[str, str] = os.environ) -> Path:
    """`BELLGLASS_PROFILE`, or `bellglass/profile.json` of the user's configuration folder."""
    if named := environ.get("BELLGLASS_PROFILE"):
        return Path(named)
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "bellglass" / "profile.json"


def read_profile(environ: Mapping[str, str] = os.environ) -> Profile | None:
    """The profile, or None where there is none. Raises ClientError for a file that can't be read as one."""
    path = profile_path(environ)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Profile(str(data["api_url"]), str(data["api_key"]), data.get("data_dir"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ClientError(f"the profile {path} can't be used: {what}", hint="`bellglass up` writes it anew") from error


def resolve(api_url: str | None = None, api_key: str | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """Settle address and key. Raises ClientError where one is missing, InvalidRequest for a bad one."""
    url = api_url or environ.get("BELLGLASS_API_URL")
    key = api_key or environ.get("BELLGLASS_API_KEY")
    if not key and url and url == environ.get("BELLGLASS_API_URL"):
        key = environ.get("BELLGLASS_TOKEN")
    if not url or not key:
        profile = read_profile(environ)
        if profile is not None and (not url or url.rstrip("/") == profile.api_url.rstrip("/")):
            url, key = profile.api_url, key or profile.api_key
    if not url:
        raise ClientError("no Bellglass server is known", hint=NEXT_STEP)
    if not key:
        raise ClientError(
            f"there is no API key for {url}",
            hint="set BELLGLASS_API_KEY; there `bellglass keys create --project NAME` makes one",
        )
    return parse(url, key)


def resolve_current(environ: Mapping[str, str] = os.environ) -> tuple[Config, str]:
    """The node of the sandbox that this program runs in, and the sandbox's id. Raises ClientError elsewhere."""
    names = ("BELLGLASS_API_URL", "BELLGLASS_TOKEN", "BELLGLASS_SANDBOX_ID")
    url, token, sandbox_id = (environ.get(name) for name in names)
    if not url or not token or not sandbox_id:
        missing = next(name for name in names if not environ.get(name))
        raise ClientError(
            f"this is not the inside of a sandbox with an identity: {missing} is not set",
            hint="elsewhere `Sandbox.connect(id)` finds one; `identity=False` at its create takes the identity away",
        )
    return parse(url, token), sandbox_id


def resolve_admin(
    api_url: str | None = None, admin_key: str | None = None, environ: Mapping[str, str] = os.environ
) -> Config:
    """As `resolve`, for the operator: the key is `admin_key` or BELLGLASS_ADMIN_KEY, never a project's."""
    url = api_url or environ.get("BELLGLASS_API_URL")
    if not url and (profile := read_profile(environ)) is not None:
        url = profile.api_url
    if not url:
        raise ClientError("no Bellglass server is known", hint=NEXT_STEP)
    key = admin_key or environ.get("BELLGLASS_ADMIN_KEY")
    if not key:
        raise ClientError(
            f"there is no admin key for {url}", hint="set BELLGLASS_ADMIN_KEY; it lies in admin.key of the data folder"
        )
    return parse(url, key)


def parse(url: str, key: str) -> Config:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"api_url: {url!r} is not an address: {error}", details={"field": "api_url"}) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise InvalidRequest(
            f"api_url: {url!r} is not the address of a server",
            hint="it looks like http://127.0.0.1:7300",
            details={"field": "api_url"},
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidRequest("api_key: a key has printable ASCII characters only", details={"field": "api_key"})
    return Config(parts.scheme, parts.hostname, port, parts.path.rstrip("/"), key)
