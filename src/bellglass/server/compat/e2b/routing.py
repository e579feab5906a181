"""Where a request of an E2B client goes: to the control plane below /compat/e2b, or to a port of a sandbox.

The port is named by the headers E2b-Sandbox-Id and E2b-Sandbox-Port, on any path. No native client sends these.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bellglass.errors import InvalidRequest, NotFound, NotSupported, Unauthorized
from bellglass.ids import SANDBOX_ID
from bellglass.model import State
from bellglass.server.auth.principal import KeyState, Principal
from bellglass.server.compat.e2b import auth, errors, inside, signatures
from bellglass.server.compat.e2b.actions import application
from bellglass.server.db.tables import projects, sandboxes
from bellglass.server.http.context import App, Receive, Scope, Send, context_of
from bellglass.server.services import Services

PREFIX = "/compat/e2b"
ENVD_PORT = 49983
INTERPRETER_PORT = 49999
MAX_IDLE_KEYS = 256
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_ID_HEADER = b"e2b-sandbox-id"
_KEY_HEADER = auth.HEADER.encode()
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_OWNER = (
    select(sandboxes.c.state, sandboxes.c.template, sandboxes.c.project_id, projects.c.name)
    .join(projects, projects.c.id == sandboxes.c.project_id)
    .where(sandboxes.c.id == bindparam("id"), sandboxes.c.deleted_at.is_(None))
)


@dataclass(frozen=True, slots=True)
class Destination:
    """A port of a sandbox that runs. Whoever calls has shown no key: `principal` is the sandbox's project, with a key
    of its own that no revocation ends; it may be used once the tokens were checked."""

    sandbox_id: str
    port: int
    template: str
    principal: Principal

    @property
    def project_id(self) -> str:
        return self.principal.project

    @property
    def variables(self) -> dict[str, str]:
        """What programs find in their environment unless they are given another value."""
        return inside.variables(self.sandbox_id, self.template, self.project_id)


Serve = Callable[[Request, Destination], Awaitable[Response]]
"""Answers a request to a port. It checks the sandbox's tokens and then calls `admit`. What it raises of our tree is
answered in E2B's shape."""


def admit(request: Request, target: Destination) -> None:
    """Whoever calls has shown the token: from here on it is counted as a request of the sandbox's project. Raises
    LimitExceeded."""
    context = context_of(request)
    services: Services = request.app.state.services()
    context.count(target.principal.key, services.settings["server.max_key_requests"])
    context.principal = target.principal


class Front:
    """In front of the native application. `ports`: what answers for the ports that E2B's own programs have."""

    def __init__(self, native: App, control: App, services: Callable[[], Services], ports: Mapping[int, Serve]) -> None:
        self._native = native
        self._control = control
        self._services = services
        self._ports = ports
        self._keys: dict[str, KeyState] = {}
        self._visits = application([Route("/{path:path}", self._visit, methods=METHODS)], services)
        self._astray = application([Route("/{path:path}", _astray, methods=METHODS)], services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._native(scope, receive, send)
            return
        is_below = _is_below(scope["path"])
        # Also where E2B_SANDBOX_URL is the same as E2B_API_URL.
        own = _stripped(scope) if is_below else scope
        if own["path"] == signatures.PATH or _has(scope, _ID_HEADER):
            await self._visits(own, receive, send)
        elif is_below:
            await self._control(own, receive, send)
        elif _has(scope, _KEY_HEADER) and not own["path"].startswith("/v1/"):
            await self._astray(own, receive, send)
        else:
            await self._native(scope, receive, send)

    async def _visit(self, request: Request) -> Response:
        sandbox_id, port = _named(request.headers) or await self._signed(request)
        target = self._destination(sandbox_id, port)
        if target is None:
            context_of(request).error_code = "not_running"
            return errors.not_running(sandbox_id)
        serve = self._ports.get(port)
        if serve is None:
            raise NotSupported(
                f"port {port} is not served under this address",
                hint="open the URL of the published port: `bellglass publish` tells it",
            )
        context_of(request).objects["sandbox_id"] = sandbox_id
        return await serve(request, target)

    async def _signed(self, request: Request) -> tuple[str, int]:
        """Of a URL that its client signed: it is fetched by others, who know nothing of headers."""
        services = self._services()
        found = None
        if "signature" in request.query_params:
            query = dict(request.query_params)
            found = await services.reader.in_thread(signatures.signer, services.e2b, request.method, query)
        if found is None:
            raise Unauthorized("the URL names no sandbox", hint="sign it, or send E2b-Sandbox-Id")
        return found, ENVD_PORT

    def _destination(self, sandbox_id: str, port: int) -> Destination | None:
        """None for whatever does not run, unknown ids among it: all answer the same."""
        if not SANDBOX_ID.fullmatch(sandbox_id):
            return None
        row = self._services().reader.inline(_owner, sandbox_id)
        if row is None or row.state != State.RUNNING:
            return None
        principal = Principal(sandbox_id, row.project_id, row.name, self._key(sandbox_id))
        return Destination(sandbox_id, port, row.template, principal)

    def _key(self, sandbox_id: str) -> KeyState:
        """One for all requests to a sandbox that are under way."""
        if len(self._keys) >= MAX_IDLE_KEYS:
            self._keys = {id: key for id, key in self._keys.items() if key.requests}
        return self._keys.setdefault(sandbox_id, KeyState(sandbox_id, ""))


async def _astray(request: Request) -> Response:
    """A client that was told the server's address alone. It can't read the native API's errors."""
    raise NotFound(
        f"E2B's API is below {PREFIX} here",
        hint=f"set E2B_API_URL to this address and {PREFIX}; `bellglass compat e2b` prints all that clients need",
    )


def _has(scope: Scope, header: bytes) -> bool:
    return any(name == header for name, _ in scope["headers"])


def _owner(connection: Connection, sandbox_id: str) -> Row[*tuple[Any, ...]] | None:
    return connection.execute(_OWNER, {"id": sandbox_id}).first()


def _named(headers: Headers) -> tuple[str, int] | None:
    ids, ports = headers.getlist("e2b-sandbox-id"), headers.getlist("e2b-sandbox-port")
    if not ids:
        return None
    if len(ids) > 1 or len(ports) > 1:
        raise InvalidRequest("E2b-Sandbox-Id and E2b-Sandbox-Port must be sent once")
    port = ports[0].strip() if ports else str(ENVD_PORT)
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise InvalidRequest(f"E2b-Sandbox-Port: {port[:20]!r} is no port")
    return ids[0].strip(), int(port)


def _is_below(path: str) -> bool:
    return path == PREFIX or path.startswith(PREFIX + "/")


def _stripped(scope: Scope) -> Scope:
    """With the path that the client meant below the prefix."""
    raw = scope.get("raw_path") or scope["path"].encode()
    path = scope["path"][len(PREFIX) :] or "/"
    return {**scope, "path": path, "raw_path": raw[len(PREFIX) :] or b"/"}
