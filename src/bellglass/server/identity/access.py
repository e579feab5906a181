"""What a sandbox may do with its own identity. Whatever is not listed here is refused, routes to come included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bellglass.errors import Forbidden
from bellglass.model import PutPort
from bellglass.server.auth.principal import Principal
from bellglass.server.sandboxes import guard

ACTIONS = ("me.get", "sandbox.get", "event.list", "port.list", "port.get", "port.publish", "port.unpublish")


def check(principal: Principal, action: str, objects: Mapping[str, Any]) -> None:
    """`objects`: the ids of the request's path. Raises NotFound for another sandbox, there or not and whatever is to be
    done to it, and Forbidden."""
    if objects.get("sandbox_id", principal.sandbox_id) != principal.sandbox_id:
        raise guard.not_found()
    if action not in ACTIONS:
        raise _forbidden(action, f"a sandbox's own identity can't do {action!r}", f"it can: {', '.join(ACTIONS)}")


def check_publish(principal: Principal, body: PutPort) -> None:
    """Only as private, under a name. Raises Forbidden; nothing for a key."""
    if principal.sandbox_id is None:
        return
    if body.visibility != "private":
        raise _forbidden(
            "port.publish",
            f"a sandbox's own identity can't do 'port.publish' with visibility {body.visibility!r}",
            "it can publish as private; a key of the project can do the rest",
        )
    if body.own_address:
        raise _forbidden(
            "port.publish",
            "a sandbox's own identity can't do 'port.publish' with own_address",
            "leave it out; a key of the project can do that",
        )


def check_follow(principal: Principal) -> None:
    """Each who follows is a query for whatever happens to anybody. Raises Forbidden; nothing for a key."""
    if principal.sandbox_id is not None:
        raise _forbidden(
            "event.list", "a sandbox's own identity can't do 'event.list' with follow", "ask again with `cursor`"
        )


def _forbidden(action: str, message: str, hint: str) -> Forbidden:
    return Forbidden(message, hint=hint, details={"action": action})
