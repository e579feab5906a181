"""One request of envd's API: who calls, what it may take, and the services it is answered with."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from fastapi import Request

from bellglass.server.compat.e2b.envd.connect import timeout_of
from bellglass.server.compat.e2b.envd.errors import ConnectError
from bellglass.server.compat.e2b.routing import Destination
from bellglass.server.http.context import Context, context_of
from bellglass.server.services import Services

KEEPALIVE_HEADER = "keepalive-ping-interval"
KEEPALIVE_S = 90.0
LEAST_KEEPALIVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Call:
    """`timeout_s` None: no limit. `user` None: the sandbox's own."""

    request: Request
    services: Services
    target: Destination
    user: str | None
    timeout_s: float | None

    @property
    def project_id(self) -> str:
        return self.target.project_id

    @property
    def sandbox_id(self) -> str:
        return self.target.sandbox_id

    @property
    def context(self) -> Context:
        return context_of(self.request)

    @property
    def request_id(self) -> str:
        return self.context.request_id

    def acts(self, action: str, *, audited: bool = True, **objects: str) -> None:
        """Tell the audit, by the native action's name."""
        context = self.context
        context.action, context.audited = action, audited
        context.objects.update(objects)

    @property
    def keepalive_s(self) -> float:
        """After how much silence a stream says that it is alive."""
        given = self.request.headers.get(KEEPALIVE_HEADER, "")
        if given.isascii() and given.isdigit() and len(given) < 6 and int(given) > 0:
            return max(float(given), LEAST_KEEPALIVE_S)
        return KEEPALIVE_S


def call_of(request: Request, services: Services, target: Destination) -> Call:
    """Raises ConnectError for headers that can't be read."""
    user = user_of(request.headers.get("authorization"))
    return Call(request, services, target, user, timeout_of(request.headers))


def user_of(header: str | None) -> str | None:
    """The name in `Basic base64("name:")`. It is no proof of anything: who has the token may act as any user."""
    if header is None:
        return None
    scheme, _, given = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, _ = base64.b64decode(given.strip(), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        raise ConnectError("unauthenticated", "Authorization: the user is not Basic base64") from None
    return name or None
