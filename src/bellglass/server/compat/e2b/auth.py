"""X-API-KEY of the control plane: the same keys, projects and refusals as natively."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request

from bellglass.errors import Unauthorized
from bellglass.server.auth.principal import Principal
from bellglass.server.http.context import context_of
from bellglass.server.services import Services

HEADER = "x-api-key"
_HINT = "set E2B_API_KEY; `bellglass compat e2b --project NAME` makes a key, and prints what else clients need"


def authenticate(request: Request, services: Services) -> Principal:
    """The key's principal, counted among what is under way of it. Raises Unauthorized, Forbidden, LimitExceeded."""
    secret = _secret(request.headers)
    try:
        principal = services.auth.of_secret(secret, "project")
    except Unauthorized as error:
        raise Unauthorized(error.message, hint=_HINT) from error  # the native one speaks of another header
    context = context_of(request)
    context.principal = principal
    context.count(principal.key, services.settings["server.max_key_requests"])
    return principal


def _secret(headers: Headers) -> str:
    given = headers.getlist(HEADER)
    if len(given) != 1 or not given[0].strip():
        raise Unauthorized("no key was sent in X-API-KEY", hint=_HINT)
    return given[0].strip()
