"""/v1/sandboxes/{id}/ports."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from bellglass.errors import Conflict, LimitExceeded, NotFound, NotSupported, SandboxGone, TooLarge
from bellglass.model import CreatePortToken, PortToken, PublishedPort, PutPort
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer, no_content, page
from bellglass.server.http.bodies import read_record
from bellglass.server.identity.access import check_publish
from bellglass.server.services import principal_of, project_of, services_of

routes = Routes("ports")
PORTS = "/v1/sandboxes/{sandbox_id}/ports"
PORT = PORTS + "/{port}"
TOKENS = PORT + "/tokens"
MISTAKEN = {"ttl": "expires_in", "lifetime": "expires_in", "public": "visibility", "host": "host_header"}
Port = Annotated[int, Path(ge=1, le=65535, description="what the program inside listens on")]
EXAMPLE = {"visibility": "private", "host_header": "localhost:8000", "frame_ancestors": ["https://app.example.com"]}
PORT_EXAMPLE = {
    "sandbox_id": "sbaaaaaaaaaaaaaaaaaaaa", "port": 8000, "visibility": "private",
    "url": "http://sbaaaaaaaaaaaaaaaaaaaa-8000.localhost:7380", "host_header": "localhost:8000",
    "frame_ancestors": ["https://app.example.com"], "http2": False, "tls": False, "address": None, "expires_at": None,
    "created_at": "2026-01-01T00:00:00.000000Z", "updated_at": "2026-01-01T00:00:00.000000Z",
}  # fmt: skip
TOKEN_EXAMPLE = {
    "token": "bgp_...", "url": "http://sbaaaaaaaaaaaaaaaaaaaa-8000.localhost:7380/?_bellglass_token=bgp_...",
    "expires_at": "2026-01-01T01:00:00.000000Z", "single_use": False,
}  # fmt: skip


@routes.action("GET", PORTS, "port.list", answer="page:PublishedPort", errors=(NotFound,))
async def list_ports(request: Request, sandbox_id: str) -> Response:
    """Published ports of a sandbox."""
    return page(await services_of(request).ports.list(project_of(request), sandbox_id), None)


@routes.action(
    "PUT", PORT, "port.publish", body=PutPort, answer=PublishedPort, example=EXAMPLE, answer_example=PORT_EXAMPLE,
    errors=(NotFound, SandboxGone, Conflict, LimitExceeded, TooLarge, NotSupported),
)  # fmt: skip
async def put(request: Request, sandbox_id: str, port: Port) -> Response:
    """Give a port an URL, which is an origin of its own. Private unless told: visitors need a token. Published anew,
    it has the new options and its tokens go on."""
    services = services_of(request)
    body = await read_record(request, PutPort, services.settings["server.max_body"], mistaken=MISTAKEN)
    check_publish(principal_of(request), body)
    return answer(await services.ports.publish(project_of(request), sandbox_id, port, body))


@routes.action("GET", PORT, "port.get", answer=PublishedPort, answer_example=PORT_EXAMPLE, errors=(NotFound,))
async def get(request: Request, sandbox_id: str, port: Port) -> Response:
    """One published port."""
    return answer(services_of(request).ports.get(project_of(request), sandbox_id, port))


@routes.action("DELETE", PORT, "port.unpublish", status=204, errors=(NotFound,))
async def delete(request: Request, sandbox_id: str, port: Port) -> Response:
    """Take the URL away; connections through it are cut. Repeats answer 204."""
    await services_of(request).ports.unpublish(project_of(request), sandbox_id, port)
    return no_content()


@routes.action(
    "POST", TOKENS, "port_token.create", body=CreatePortToken, answer=PortToken, status=201,
    example={"expires_in": "1h", "single_use": True}, answer_example=TOKEN_EXAMPLE,
    errors=(NotFound, Conflict, TooLarge),
)  # fmt: skip
async def create_token(request: Request, sandbox_id: str, port: Port) -> Response:
    """A token of a private port: `url` is for a browser, programs send `token` as X-Bellglass-Token.
    It ends with the key that made it."""
    services = services_of(request)
    body = await read_record(request, CreatePortToken, services.settings["server.max_body"], mistaken=MISTAKEN)
    key_id = principal_of(request).key_id
    return answer(services.ports.create_token(project_of(request), sandbox_id, port, body, key_id), 201)


@routes.action("DELETE", TOKENS, "port_token.revoke", status=204, errors=(NotFound,))
async def revoke_tokens(request: Request, sandbox_id: str, port: Port) -> Response:
    """End all tokens and cookies of the port at once; connections through it are cut."""
    await services_of(request).ports.revoke_tokens(project_of(request), sandbox_id, port)
    return no_content()
