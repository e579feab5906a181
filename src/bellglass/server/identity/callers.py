"""Who a request from inside comes from: a running sandbox that has an identity, by the credential of its node."""

from __future__ import annotations

import time

from starlette.datastructures import Headers

from bellglass.errors import Unauthorized
from bellglass.link import credential
from bellglass.model import State
from bellglass.server.auth.principal import KeyState, Principal
from bellglass.server.db.reader import Reader
from bellglass.server.identity import store


class Callers:
    def __init__(self, reader: Reader, secret: str, installation: str) -> None:
        self._reader = reader
        self._secret = secret
        self._installation = installation

    def principal(self, headers: Headers) -> Principal:
        """Raises Unauthorized: a bad credential, or a sandbox that does not run (any more) or has no identity."""
        given = headers.getlist("authorization")
        scheme, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        caller = None
        if scheme.lower() == "bearer":
            caller = credential.read(self._secret, self._installation, text.strip(), time.time())
        if caller is None:
            raise Unauthorized("the node's credential is not good", hint="node and server may be of two installations")
        row = self._reader.inline(store.caller, caller.sandbox_id)
        if row is None or row.generation != caller.generation or row.state != State.RUNNING or not row.identity:
            raise Unauthorized(
                "this sandbox can't call the API", hint="it has ended, or was created without an identity"
            )
        key = KeyState(caller.sandbox_id, "")
        return Principal(caller.sandbox_id, row.project_id, row.project_name, key, sandbox_id=caller.sandbox_id)
