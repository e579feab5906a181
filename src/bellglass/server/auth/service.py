"""Checking keys: SHA-256 of the secret, looked up once and then remembered.

One server process owns the database, so a revoked key is refused at once: revocation goes through `Auth.forget`.
Unknown secrets are never remembered. Keys are 160 random bits, so a plain hash is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Any, Literal

from starlette.datastructures import Headers

from bellglass.errors import Forbidden, Unauthorized
from bellglass.server.auth import store
from bellglass.server.auth.principal import KeyState, Principal
from bellglass.server.db.reader import Reader

_BEARER = re.compile(r"^Bearer +([\x21-\x7e]{1,256}) *$", re.IGNORECASE)
_SECRET = re.compile(r"[\x21-\x7e]{1,256}")
_HINT = "send `Authorization: Bearer bg_...`; `bellglass keys create --project NAME` makes a key"
ADMIN_KEY_ID = "admin"


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


class Auth:
    def __init__(self, reader: Reader, admin_hash_file: Path) -> None:
        self._reader = reader
        self._admin_hash_file = admin_hash_file
        self._known: dict[str, Principal] = {}
        self._by_key: dict[str, Principal] = {}
        self._admin: Principal | None = None

    def check(self, headers: Headers, access: Literal["any", "project", "admin"] | str) -> Principal:
        """The principal of a request. Raises Unauthorized (401) and Forbidden (403), each with the next step."""
        return self.of_secret(_bearer(headers), access)

    def of_secret(self, secret: str, access: Literal["any", "project", "admin"] | str) -> Principal:
        """As `check`, for a secret that came in another way."""
        principal = self._principal(secret)
        if access == "project" and principal.project_id is None:
            raise Forbidden(
                "the admin key has no project, so it can't use sandboxes",
                hint="make a project key: `bellglass keys create --project NAME`",
            )
        if access == "admin" and principal.project_id is not None:
            raise Forbidden("this needs the admin key", hint="it lies in admin.key of the data folder")
        return principal

    def of_key(self, key_id: str) -> Principal | None:
        """The principal of a project's key that is known by its id alone; None if there is none, or it was revoked."""
        principal = self._by_key.get(key_id)
        if principal is None and (row := self._reader.inline(store.active_key_of_id, key_id)) is not None:
            principal = self._remember(row)
        return principal

    def forget(self, key_id: str) -> None:
        """A key was revoked: refuse it from now on and cut the streams that it started."""
        principal = self._by_key.pop(key_id, None)
        if principal is not None:
            self._known.pop(principal.key.digest, None)
            principal.key.revoke()

    def take_used(self) -> list[str]:
        """Ids of the keys used since the last call, for `last_used_at`."""
        used = [principal for principal in self._by_key.values() if principal.key.used]
        for principal in used:
            principal.key.used = False
        return [principal.key_id for principal in used]

    def _principal(self, secret: str) -> Principal:
        if not _SECRET.fullmatch(secret):
            raise Unauthorized("the key is unknown or was revoked", hint=_HINT)
        digest = digest_of(secret)
        principal = self._known.get(digest) or self._look_up(digest, secret)
        if principal is None or not hmac.compare_digest(principal.key.digest, digest) or principal.key.revoked:
            raise Unauthorized("the key is unknown or was revoked", hint=_HINT)
        principal.key.used = True
        return principal

    def _look_up(self, digest: str, secret: str) -> Principal | None:
        if secret.startswith("bgadmin_"):
            return self._check_admin(digest)
        row = self._reader.inline(store.active_key, digest)
        if row is None:
            return None
        return self._remember(row)

    def _remember(self, row: Any) -> Principal:
        digest = row.secret_sha256
        principal = Principal(row.id, row.project_id, row.project_name, KeyState(row.id, digest))
        self._known[digest] = self._by_key[row.id] = principal
        return principal

    def _check_admin(self, digest: str) -> Principal | None:
        # Read each time: an operator who replaces the file must not have to restart the server. Admin calls are rare.
        try:
            expected = self._admin_hash_file.read_text().strip()
        except FileNotFoundError:
            return None
        if not hmac.compare_digest(expected, digest):
            return None
        if self._admin is None or self._admin.key.digest != digest:
            self._admin = Principal(ADMIN_KEY_ID, None, None, KeyState(ADMIN_KEY_ID, digest))
        return self._admin


def _bearer(headers: Headers) -> str:
    header = headers.get("authorization")
    if header is None:
        raise Unauthorized("no key was sent", hint=_HINT)
    match = _BEARER.fullmatch(header)
    if match is None:
        raise Unauthorized("the Authorization header is not `Bearer <key>`", hint=_HINT)
    return match[1]
