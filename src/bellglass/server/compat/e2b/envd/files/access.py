"""Who may use /files: whoever has the sandbox's token, or a URL that its holder has signed.

The signature is over what the URL says, as it says it. It names no sandbox, but only one token makes it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time

from fastapi import Request

from bellglass.errors import InvalidRequest, Unauthorized

TOKEN_HEADER = "x-access-token"
_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)


def check(request: Request, token: str, operation: str) -> None:
    """`operation` is `read` or `write`. Raises Unauthorized."""
    given = request.headers.get(TOKEN_HEADER)
    if given is not None:
        if not same(token, given):
            raise Unauthorized("the access token is not this sandbox's")
        return
    if not signs(request, token, operation):
        missing = "signature" not in request.query_params
        raise Unauthorized("missing signature query parameter" if missing else "invalid signature")
    expires_at = request.query_params.get("signature_expiration")
    if expires_at is not None and int(expires_at) < time.time():
        raise Unauthorized("signature is already expired")


def signs(request: Request, token: str, operation: str) -> bool:
    """Whether the URL was signed with this token, expired or not."""
    query = request.query_params
    given = query.get("signature")
    if given is None:
        return False
    expires_at = query.get("signature_expiration")
    if expires_at is not None and not _SECONDS.fullmatch(expires_at):
        return False
    text = f"{query.get('path', '')}:{operation}:{query.get('username', '')}:{token}"
    if expires_at is not None:
        text += f":{expires_at}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    # A query has spaces for plus signs that nobody escaped.
    return same("v1_" + base64.b64encode(digest).decode("ascii").rstrip("="), given.replace(" ", "+").rstrip("="))


def same(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogateescape"))


def one(request: Request, name: str) -> str | None:
    """A query parameter that may come once. Raises InvalidRequest."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise InvalidRequest(f"{name}: came {len(values)} times", details={"field": name})
    return values[0] if values else None
