"""Who may use /files: whoever has the sandbox's token, or a URL that its holder has signed.

The signature is over what the URL says, as it says it. It names no sandbox, but only one token makes it.
"""

from __future__ import annotations

import re
import time

from fastapi import Request

from bellglass.errors import InvalidRequest, Unauthorized
from bellglass.server.compat.e2b import signatures
from bellglass.server.compat.e2b.tokens import Tokens

TOKEN_HEADER = "x-access-token"
_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)


def check(request: Request, tokens: Tokens, sandbox_id: str) -> None:
    """Raises Unauthorized."""
    token, query = request.headers.get(TOKEN_HEADER), request.query_params
    if token is not None:
        if not tokens.opens_envd(sandbox_id, token):
            raise Unauthorized("the access token is not this sandbox's")
        return
    if "signature" not in query:
        raise Unauthorized("missing signature query parameter")
    expires_at = query.get("signature_expiration") or None
    if expires_at is not None and not _SECONDS.fullmatch(expires_at):
        raise Unauthorized("invalid signature")
    if not signatures.fits(tokens, sandbox_id, request.method, query):
        raise Unauthorized("invalid signature")
    if expires_at is not None and int(expires_at) < time.time():
        raise Unauthorized("signature is already expired")


def one(request: Request, name: str) -> str | None:
    """A query parameter that may come once. Raises InvalidRequest."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise InvalidRequest(f"{name}: came {len(values)} times", details={"field": name})
    return values[0] if values else None
