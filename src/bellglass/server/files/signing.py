"""URLs of one file that need no key: an HMAC binds sandbox, path, operation, user and time, and the key that signed.

Nothing is stored. Whoever has such a URL has what it allows, until its time is over or its key is revoked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import NamedTuple

from bellglass.errors import Forbidden, Unauthorized
from bellglass.server.auth.principal import Principal
from bellglass.server.auth.service import Auth
from bellglass.server.http.validation import refuse
from bellglass.units import parse_duration

MAX_LIFETIME_S = 7 * 86400.0
DEFAULT_LIFETIME = "1h"
OPERATIONS = ("read", "write")
_DOMAIN = b"bellglass file url\0"
_HINT = "ask whoever made the URL for a new one"


class Grant(NamedTuple):
    """What a URL allows. `user` as it was named, None for the sandbox's own."""

    sandbox_id: str
    operation: str
    path: str
    user: str | None
    key_id: str
    expires: int
    """Unix seconds."""


class Signing:
    def __init__(self, server_secret: str, auth: Auth) -> None:
        self._key = hmac.digest(server_secret.encode(), _DOMAIN, hashlib.sha256)
        self._auth = auth

    def sign(self, grant: Grant) -> str:
        digest = hmac.digest(self._key, json.dumps(grant).encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def check(self, grant: Grant, signature: str) -> Principal:
        """Who signed it. Raises Forbidden for a URL that was changed or is over, Unauthorized for a revoked key."""
        if not hmac.compare_digest(self.sign(grant).encode(), signature.encode("utf-8", "surrogateescape")):
            raise Forbidden("the URL's signature is not valid for what it asks", hint=_HINT)
        if grant.expires <= time.time():
            raise Forbidden("the URL's time is over", hint=_HINT, details={"expired_at_unix": grant.expires})
        principal = self._auth.of_key(grant.key_id)
        if principal is None:
            raise Unauthorized("the key that signed this URL was revoked", hint=_HINT)
        return principal


def lifetime(value: float | str) -> float:
    """Seconds. Raises InvalidRequest."""
    seconds = parse_duration(value, "expires_in")
    if not 1 <= seconds <= MAX_LIFETIME_S:
        raise refuse("expires_in", value, "is not from 1 second to 7 days", 'such as "15m"')
    return seconds


def check_operation(operation: str) -> str:
    if operation not in OPERATIONS:
        raise refuse("operation", operation, "is not one", '"read" or "write"')
    return operation
