"""Making, listing and revoking keys. A secret is shown once, at its making; only its SHA-256 is kept."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection

from bellglass.errors import InvalidRequest, NotFound
from bellglass.ids import KEY_ID, NAME, new_key_id, new_project_id, random_base32
from bellglass.model import ApiKey, Project, now
from bellglass.server.auth.service import Auth, digest_of
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.http.validation import refuse, shown
from bellglass.server.keys import store

SECRET_CHARACTERS = 32  # of 5 bits: 160
FORMATS: dict[str, Callable[[], str]] = {
    "bellglass": lambda: "bg_" + random_base32(SECRET_CHARACTERS),
    "e2b": lambda: "e2b_" + secrets.token_hex(20),
}


class Keys:
    """`on_revoked(key_id)` is called before a revocation is answered."""

    def __init__(self, reader: Reader, writer: Writer, auth: Auth, on_revoked: Callable[[str], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._auth = auth
        self._on_revoked = on_revoked

    async def create(self, project: str, label: str | None, format: str = "bellglass") -> ApiKey:
        """A key for a project, which is made if it is new. Raises InvalidRequest."""
        if format not in FORMATS:
            raise refuse("format", format, "is no format of keys", f"one of: {', '.join(FORMATS)}")
        if not NAME.fullmatch(project):
            raise InvalidRequest(
                f"project: {shown(project)} is not a name",
                hint="1 to 63 letters, digits, '.', '_', '-', no mark at either end",
                details={"field": "project"},
            )
        if label is not None and (not label or len(label) > 256 or not label.isprintable()):
            raise InvalidRequest(
                f"label: {shown(label)} is not a label",
                hint="1 to 256 printable characters",
                details={"field": "label"},
            )
        secret = FORMATS[format]()
        made = now()

        def write(connection: Connection) -> ApiKey:
            owner = store.project_named(connection, project)
            if owner is None:
                owner = Project(id=new_project_id(), name=project, created_at=made)
                store.add_project(connection, owner)
            key = ApiKey(
                id=new_key_id(),
                project_id=owner.id,
                project_name=owner.name,
                label=label,
                created_at=made,
                last_used_at=None,
                revoked_at=None,
                secret=secret,
            )
            store.add_key(connection, key, digest_of(secret))
            return key

        return await self._writer.run(write)

    async def revoke(self, key_id: str) -> None:
        """Refused from now on; streams that it started are cut, and so are visitors of ports who came with its tokens.
        Repeats are fine. Raises NotFound."""
        if not KEY_ID.fullmatch(key_id) or not await self._writer.run(partial(store.revoke, key_id=key_id, at=now())):
            raise NotFound("there is no such key", hint="`bellglass keys ls` lists them", details={"kind": "key"})
        self._auth.forget(key_id)
        self._on_revoked(key_id)

    async def keys(self) -> list[ApiKey]:
        return await self._reader.in_thread(store.all_keys)

    async def projects(self) -> list[Project]:
        return await self._reader.in_thread(store.all_projects)

    def key(self, key_id: str) -> ApiKey:
        return self._reader.inline(store.key, key_id)

    def project(self, project_id: str) -> Project:
        return self._reader.inline(store.project, project_id)
