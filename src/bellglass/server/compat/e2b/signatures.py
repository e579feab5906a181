"""URLs of files that E2B's clients sign themselves: they name no sandbox, so the one whose token fits is looked for."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from sqlalchemy import Connection, select

from bellglass.model import State
from bellglass.server.compat.e2b.tokens import Tokens
from bellglass.server.db.tables import sandboxes

PATH = "/files"
_RUNNING = select(sandboxes.c.id).where(sandboxes.c.state == State.RUNNING)


def signature(path: str, operation: str, username: str, token: str, expiration: str | None) -> str:
    """Of a URL's parameters as they are passed, `username` empty where there is none; `operation` is read or write."""
    parts = [path, operation, username, token] + ([expiration] if expiration else [])
    digest = hashlib.sha256(":".join(parts).encode("utf-8", "surrogateescape")).digest()
    return "v1_" + base64.b64encode(digest).rstrip(b"=").decode()


def fits(tokens: Tokens, sandbox_id: str, method: str, query: Mapping[str, str]) -> bool:
    """Whether the sandbox's token signed this; that it has expired is not looked at."""
    operation = "write" if method in ("POST", "PUT") else "read"
    expected = signature(
        query.get("path", ""),
        operation,
        query.get("username", ""),
        tokens.envd(sandbox_id),
        query.get("signature_expiration"),
    )
    return hmac.compare_digest(expected.encode(), query.get("signature", "").encode("utf-8", "surrogateescape"))


def signer(connection: Connection, tokens: Tokens, method: str, query: Mapping[str, str]) -> str | None:
    """The id of the running sandbox whose token signed it, None for nobody's. Costs some microseconds for each."""
    for (sandbox_id,) in connection.execute(_RUNNING):
        if fits(tokens, sandbox_id, method, query):
            return str(sandbox_id)
    return None
