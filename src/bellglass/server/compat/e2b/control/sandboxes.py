"""Sandboxes of E2B's API, both generations of it: create, connect, list, timeouts, kill."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from bellglass.errors import BellglassError, InvalidRequest, NotFound
from bellglass.model import CreateSandbox, Sandbox, State, UpdateSandbox, parse_time
from bellglass.server.compat.e2b import inside
from bellglass.server.compat.e2b.actions import Routes, services_of
from bellglass.server.compat.e2b.control import bodies, network, shapes
from bellglass.server.compat.e2b.control.bodies import Body
from bellglass.server.compat.e2b.errors import not_supported
from bellglass.server.http.answers import answer, no_content
from bellglass.server.http.context import context_of
from bellglass.server.sandboxes import guard
from bellglass.server.sandboxes.idempotency import check_key
from bellglass.server.services import Services, principal_of

DEFAULT_TIMEOUT_S = 300
routes = Routes()


@routes.action("POST", "/v2/sandboxes", "sandbox.create")
async def create(request: Request) -> Response:
    """As 2.46 and later ask: envd always wants its token."""
    body = await _body(request)
    return await _create(request, body)


@routes.action("POST", "/sandboxes", "sandbox.create")
async def create_v1(request: Request) -> Response:
    """As up to 2.45. `secure: false` changes nothing: the token is minted, and those clients send it."""
    body = await _body(request)
    body.take("secure", bool)
    return await _create(request, body)


async def _create(request: Request, body: Body) -> Response:
    services, context = services_of(request), context_of(request)
    template = body.take("templateID", str)
    if not template:
        raise InvalidRequest("templateID: is missing")
    net = network.wanted(body)
    wanted = CreateSandbox(
        template=template,
        lifetime=_timeout(body, least=1),
        labels=body.strings("metadata"),
        env=body.strings("envVars"),
        network=net.network,
        auto_publish="public" if net.public_ports else "private",
        auto_publish_host=net.host,
        auto_publish_tls=net.tls_ports,
    )
    _refuse_what_is_not_here(body)
    body.done()
    key = check_key(request.headers.get("idempotency-key"))
    try:
        created = await services.creator.create(principal_of(request).project, wanted, key, context.request_id)
    except InvalidRequest as error:
        if error.details.get("field") == "template":
            raise NotFound(error.message, hint=error.hint) from None
        for ours, theirs in (("auto_publish_host", "maskRequestHost"), ("auto_publish_tls", "httpsPorts")):
            if error.details.get("field") == ours:
                raise InvalidRequest(error.message.replace(ours, f"network.{theirs}")) from None
        raise
    project, sandbox_id = principal_of(request).project, created.sandbox["id"]
    context.objects["sandbox_id"] = sandbox_id
    found = services.sandboxes.get(project, sandbox_id)
    if found.state == State.RUNNING:  # not so where the answer of an earlier create is told again
        try:
            await inside.write(services, found, project, context.request_id)
        except BellglassError:  # nobody hears of the sandbox, so nobody would end it
            await services.deleter.delete(project, sandbox_id, context.request_id)
            raise
    return _started(services, found, 201)


@routes.action("POST", "/v2/sandboxes/{sandbox_id}/connect", "sandbox.update")
@routes.action("POST", "/sandboxes/{sandbox_id}/connect", "sandbox.update")
async def connect(request: Request) -> Response:
    """The end moves later, never earlier."""
    services = services_of(request)
    body = await _body(request)
    timeout_s = _timeout(body, least=1)
    body.take("memory", bool)  # of one that is paused; here none is
    body.done()
    return _started(services, await _extend(request, timeout_s), 200)


@routes.action("GET", "/sandboxes/{sandbox_id}", "sandbox.get")
async def get(request: Request) -> Response:
    services = services_of(request)
    return answer(shapes.detail(running(request), services.e2b, shapes.domain_of(services.ports.origins)))


@routes.action("DELETE", "/sandboxes/{sandbox_id}", "sandbox.delete")
async def kill(request: Request) -> Response:
    """Of one that has ended it is told that there is none, and nothing of it is kept any longer."""
    services, sandbox_id, project = (
        services_of(request),
        request.path_params["sandbox_id"],
        principal_of(request).project,
    )
    found = services.sandboxes.get(project, sandbox_id)
    if found.state in (State.RUNNING, State.ENDED, State.FAILED):
        await services.deleter.delete(project, sandbox_id, context_of(request).request_id)
    if found.state != State.RUNNING:
        raise guard.not_found()
    return no_content()


@routes.action("POST", "/sandboxes/{sandbox_id}/timeout", "sandbox.update")
async def set_timeout(request: Request) -> Response:
    """From now on, shorter too; 0 ends it at once."""
    body = await _body(request)
    timeout_s = _timeout(body, least=0)
    body.done()
    if timeout_s == 0:
        return await kill(request)
    running(request)
    await _update(request, UpdateSandbox(lifetime=timeout_s))
    return no_content()


@routes.action("POST", "/sandboxes/{sandbox_id}/refreshes", "sandbox.update")
async def refresh(request: Request) -> Response:
    body = await _body(request)
    duration_s = body.take("duration", int, DEFAULT_TIMEOUT_S)
    body.done()
    await _extend(request, duration_s)
    return no_content()


@routes.action("PUT", "/sandboxes/{sandbox_id}/network", "network.set")
async def set_network(request: Request) -> Response:
    """Replaces all of it. Answers once it is in force."""
    running(request)
    body = await _body(request)
    wanted = network.update(body)
    await services_of(request).networks.put(
        principal_of(request).project, request.path_params["sandbox_id"], wanted, context_of(request).request_id
    )
    return no_content()


# --- inside ---------------------------------------------------------------------------------------------


async def _body(request: Request) -> Body:
    return await bodies.read(request, services_of(request).settings["server.max_create_body"])


def _timeout(body: Body, *, least: int) -> int:
    timeout_s = body.take("timeout", int, DEFAULT_TIMEOUT_S)
    if timeout_s < least:
        raise InvalidRequest(f"timeout: {timeout_s} is not a number of seconds from {least}")
    assert isinstance(timeout_s, int)
    return timeout_s


def _refuse_what_is_not_here(body: Body) -> None:
    if body.take("autoPause", bool, False):
        raise not_supported("pausing at the timeout (autoPause)", "leave on_timeout at 'kill'")
    if body.take("autoPauseMemory", bool, True) is False:
        raise InvalidRequest("autoPauseMemory: goes with autoPause only")
    if (resume := body.take("autoResume", dict)) and resume.get("enabled"):
        raise not_supported("waking a paused sandbox (autoResume)")
    if body.take("volumeMounts", list):
        raise not_supported("mounting volumes (volumeMounts)", "copy files in after the create")
    if body.take("mcp", dict):
        raise not_supported("MCP servers of a sandbox (mcp)", "run them in a sandbox and publish their port")
    if body.take("iam", dict):
        raise not_supported("workload identity (iam)")


def running(request: Request, sandbox_id: str | None = None) -> Sandbox:
    """By default the one of the path. Raises NotFound for all that does not run: E2B knows no sandboxes that have
    ended."""
    sandbox_id = sandbox_id or request.path_params["sandbox_id"]
    found = services_of(request).sandboxes.get(principal_of(request).project, sandbox_id)
    if found.state != State.RUNNING:
        raise guard.not_found()
    return found


async def _extend(request: Request, seconds: int) -> Sandbox:
    """Leaves a later end as it is, to the byte."""
    found = running(request)
    if found.expires_at is not None and parse_time(found.expires_at).timestamp() - time.time() >= seconds:
        return found
    return await _update(request, UpdateSandbox(keep_for=seconds))


async def _update(request: Request, body: UpdateSandbox) -> Sandbox:
    return await services_of(request).sandboxes.update(
        principal_of(request).project, request.path_params["sandbox_id"], body, frozenset(),
        context_of(request).request_id,
    )  # fmt: skip


def _started(services: Services, sandbox: Sandbox, status: int) -> Response:
    return answer(shapes.started(sandbox, services.e2b, shapes.domain_of(services.ports.origins)), status)
